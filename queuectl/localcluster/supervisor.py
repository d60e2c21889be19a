"""The client of the keeper: it spawns a keeper, and requests it to start, signal and end programs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuectl.localcluster import keeper
from queuectl.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SPAWN_SECONDS = 10.0
_REQUEST_SECONDS = 10.0
_END_SECONDS = 15.0


@dataclass(frozen=True)
class Program:
    """One program of a keeper: its process id, and its exit code after its end (minus the signal if killed)."""

    pid: int
    returncode: int | None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.returncode is None


class KeeperHandle:
    """A handle for the keeper of a directory. Several processes can have one for the same keeper."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def spawn(cls, directory: Path, *, remove: bool) -> KeeperHandle:
        """Start a keeper for `directory`, owned by this process.

        Args:
            directory: An existing directory, for the keeper's socket.
            remove: The keeper deletes the directory when it ends, even after an error.

        Raises:
            LocalClusterError: The keeper does not answer.
        """
        argv = [
            sys.executable,
            "-I",
            keeper.__file__,
            str(directory),
            str(os.getpid()),
            "1" if remove else "0",
        ]
        with (directory / "keeper.log").open("ab") as log:
            # posix_spawn, because subprocess warns about a detached keeper as a child that still runs.
            null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
            output = [(os.POSIX_SPAWN_DUP2, log.fileno(), fd) for fd in (1, 2)]
            pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=[null, *output])
        supervisor = cls(directory)
        deadline = time.monotonic() + _SPAWN_SECONDS
        while not supervisor.alive():
            if time.monotonic() > deadline or _reap(pid):
                text = (directory / "keeper.log").read_text(errors="replace").strip()
                raise LocalClusterError(
                    f"the keeper of {directory} did not start: {text or 'no output'}"
                )
            time.sleep(0.005)
        return supervisor

    def start(
        self, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> int:
        """Start a program; its output is appended to `log`.

        Returns:
            Its process id.

        Raises:
            LocalClusterError: It cannot be executed, or a program of this name is running.
        """
        request = {
            "do": "start",
            "name": name,
            "argv": [str(word) for word in argv],
            "env": dict(env),
            "cwd": str(cwd),
            "log": str(log),
        }
        return int(self._ask(request)["pid"])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the program's process group. Without effect if it has ended."""
        self._ask({"do": "signal", "name": name, "signal": int(number)})

    def pause(self, name: str) -> None:
        """Freeze all threads of the program: after SIGSTOP, threads on other cores continue for a short time."""
        self.signal(name, signal.SIGSTOP)
        deadline = time.monotonic() + _END_SECONDS
        while not _frozen(self.programs()[name].pid):
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{name} does not stop for SIGSTOP")
            time.sleep(0.002)

    def stop(self, name: str, seconds: float = 10.0) -> None:
        """End one program by SIGTERM, and by SIGKILL if it runs after `seconds`."""
        self.signal(name, signal.SIGTERM)
        if self.wait(name, seconds) is None:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End one program by SIGKILL and wait until it has ended."""
        self.signal(name, signal.SIGKILL)
        if self.wait(name, _END_SECONDS) is None:
            raise LocalClusterError(f"{name} survives SIGKILL")

    def wait(self, name: str, seconds: float) -> int | None:
        """Wait for a program to end.

        Returns:
            Its exit code; None if it runs after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (code := self.programs()[name].returncode) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return code

    def programs(self) -> dict[str, Program]:
        """All programs by name, including those that have ended."""
        answer = self._ask({"do": "status"})["programs"]
        return {name: Program(one["pid"], one["returncode"]) for name, one in answer.items()}

    def detach(self) -> None:
        """Let the keeper continue after this process, until a shutdown request."""
        self._ask({"do": "detach"})

    def alive(self) -> bool:
        """Whether the keeper answers."""
        try:
            self._ask({"do": "status"})
        except LocalClusterError:
            return False
        return True

    def shutdown(self) -> None:
        """End every program and the keeper, and wait for their end.  Without effect if they have ended.

        Raises:
            TimeoutError: The keeper does not end in time.
        """
        with contextlib.suppress(LocalClusterError):
            pid = int(self._ask({"do": "status"})["keeper"])
            # A descriptor instead of the pid: it also signals the end of a process that is not a child.
            keeper_process = os.pidfd_open(pid)
            try:
                self._ask({"do": "shutdown"})
                if not select.select([keeper_process], [], [], _END_SECONDS)[0]:
                    raise TimeoutError(f"the keeper of {self.directory}, pid {pid}, does not end")
            finally:
                os.close(keeper_process)
            _reap(pid)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise LocalClusterError(
                f"the keeper of {self.directory} does not answer: {error}"
            ) from error
        if "error" in answer:
            raise LocalClusterError(f"the keeper refused to {request['do']}: {answer['error']}")
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        # By the directory's descriptor: a socket address has about a hundred bytes, and a path can be longer.
        directory = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_REQUEST_SECONDS)
                _connect(connection, f"/proc/self/fd/{directory}/{keeper.SOCKET}")
                # Without a buffer: after an interrupt, closing the buffer would write it again, to a closed connection.
                connection.sendall(line)
                with connection.makefile("rb") as stream:
                    answer = json.loads(stream.readline() or b'{"error": "the keeper hung up"}')
        finally:
            os.close(directory)
        return dict(answer)


def _connect(connection: socket.socket, address: str) -> None:
    """Connect. A Unix socket with a full queue of connections refuses at once, also a connection with a timeout."""
    deadline = time.monotonic() + _REQUEST_SECONDS
    while True:
        try:
            connection.connect(address)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return


def _reap(pid: int) -> bool:
    """Whether a child process has ended; this collects its exit status."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def _frozen(pid: int) -> bool:
    """Whether each thread of a process is stopped, or has ended."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended in the meantime
        return False
    return all(stat.rpartition(") ")[2][0] in "TtZX" for stat in stats)
