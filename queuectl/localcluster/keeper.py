"""The keeper: a small process that owns the programs of one cluster or one build. They end with it.

It runs as a script with only the standard library, so that it starts in milliseconds:

    python -I keeper.py DIRECTORY OWNER_PID REMOVE

It is a separate process for this reason: the kernel can kill a child when its parent dies (PR_SET_PDEATHSIG), but the parent
is a *thread*.  A program that a worker thread starts would end with that thread.  The keeper has one thread, so its programs
end when it ends.  It watches the pid of its owner, and ends with the owner unless it is detached.  Each program leads its own
process group, so that its children also end.

Requests are JSON objects, one per connection, on the socket `keeper.sock` in DIRECTORY:

    {"do": "start", "name", "argv", "env", "cwd", "log"} -> {"pid"}
    {"do": "signal", "name", "signal"}                   -> {}
    {"do": "status"}                                     -> {"programs": {name: {"pid", "returncode"}}, "detached", "keeper"}
    {"do": "detach"}                                     -> {}
    {"do": "shutdown"}                                   -> {}

The answer to a refused request is {"error": sentence}.  With REMOVE = 1 the directory is deleted at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOCKET = "keeper.sock"
_POLL_SECONDS = 0.2
_REQUEST_SECONDS = 5.0
_REMOVE_SECONDS = 10.0  # less than the time that the owner waits for the keeper
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_keeper() -> None:
    """Runs in the child before exec. The kernel kills the child when the keeper ends, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Keeper:
    """Starts, signals and ends programs; see the module's docstring for the requests."""

    def __init__(self, directory: Path, owner: int, *, remove: bool) -> None:
        self._directory = directory
        self._owner = owner
        self._remove = remove
        self._detached = False
        self._stopping = False
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        """Serve requests until a shutdown, a signal or the end of the owner; then end all programs."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        os.chdir(self._directory)
        with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
            # A relative name: the path of the directory can be too long for a socket address.
            listener.bind(SOCKET)
            listener.listen(16)
            ready.register(listener, selectors.EVENT_READ)
            try:
                while not self._stopping and not self._orphaned():
                    if ready.select(_POLL_SECONDS):
                        self._serve(listener)
                    self._reap()
            finally:
                self._end_all()
        if self._remove:
            os.chdir("/")
            remove_tree(self._directory)
        else:
            Path(SOCKET).unlink(missing_ok=True)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _orphaned(self) -> bool:
        return not self._detached and os.getppid() != self._owner

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_REQUEST_SECONDS)
            with connection.makefile("rwb") as stream:
                try:
                    answer = self._answer(json.loads(stream.readline()))
                except (OSError, ValueError, KeyError, TypeError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "start":
                return {"pid": self._start(request)}
            case "signal":
                self._signal(request["name"], int(request["signal"]))
            case "status":
                programs = {
                    name: {"pid": program.pid, "returncode": program.poll()}
                    for name, program in self._programs.items()
                }
                return {"programs": programs, "detached": self._detached, "keeper": os.getpid()}
            case "detach":
                self._detached = True
            case "shutdown":
                self._stopping = True
            case other:
                raise ValueError(f"unknown request {other!r}")
        return {}

    def _start(self, request: dict[str, Any]) -> int:
        name = str(request["name"])
        running = self._programs.get(name)
        if running is not None and running.poll() is None:
            raise ValueError(f"{name} is already running with pid {running.pid}")
        with Path(request["log"]).open("ab") as log:
            program = subprocess.Popen(
                request["argv"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                # Safe, because the keeper has one thread.
                preexec_fn=_die_with_keeper,  # noqa: PLW1509
            )
        self._programs[name] = program
        return program.pid

    def _signal(self, name: str, number: int) -> None:
        program = self._programs.get(name)
        if program is None:
            raise ValueError(f"no program {name} was started")
        if program.poll() is None:
            os.killpg(program.pid, number)

    def _reap(self) -> None:
        for program in self._programs.values():
            program.poll()

    def _end_all(self) -> None:
        """Kill every group.  The state is deleted with the directory, so no program needs to shut down cleanly."""
        for program in self._programs.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
        for program in self._programs.values():
            program.wait()
        # The keeper cannot wait for grandchildren (compilers) in the groups. A short pause lets them end, because they
        # must not write to the directory while it is removed.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and any(map(_group_alive, self._programs.values())):
            time.sleep(0.01)


def remove_tree(directory: Path) -> None:
    """Delete a directory to which a program with its own session can still write while it ends.

    The keeper cannot wait for such a program, for example a database that the kernel signals at the end of its owner. A file
    that appears during the removal makes it fail, and the removal is repeated for some time.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _group_alive(program: subprocess.Popen[bytes]) -> bool:
    try:
        os.killpg(program.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    """Run the keeper with the arguments of the command line."""
    directory, owner, remove = sys.argv[1:]
    os.setsid()  # a Ctrl-C in the terminal is for the owner, which then stops the keeper
    Keeper(Path(directory), int(owner), remove=remove == "1").run()


if __name__ == "__main__":
    main()
