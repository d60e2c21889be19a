"""Namespaces for a run with real nodes: nothing of it can outlive the run or be seen outside.

    python -m tests.real.sandbox COMMAND ARGUMENT...

The command runs with its own mounts, network, processes and host name. The first process of the namespace is an init, which
ends with this program, even if that is killed; the kernel then ends every process of the run, and removes its mounts and its
network. The folder of the run and its cgroups remain after a crash. The next run removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from queuectl.localcluster import build
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import HELM
from tests.real import images, needs, programs

HOME: Final = "QUEUECTL_REAL_HOME"
"""The environment variable with the folder of the run. It is set inside of the sandbox only."""

_PREFIX: Final = "queuectl-real-"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SKIPPED: Final = 0


def home() -> Path | None:
    """The folder of this run; None outside of a sandbox."""
    value = os.environ.get(HOME)
    return Path(value) if value else None


def cgroups() -> dict[str, Path]:
    """The cgroup of this run by hierarchy. All of them are below the cgroups of the process that started the run."""
    run = home()
    assert run is not None
    return _cgroups(run.name)


def _cgroups(run: str) -> dict[str, Path]:
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.removeprefix("name=").split(","), path)
    return {name: _CGROUPS / name / own[name].lstrip("/") / run for name in needs.HIERARCHIES}


def main(command: Sequence[str]) -> int:
    """Prepare what needs the network of the machine, then run the command in new namespaces."""
    if reason := needs.machine():
        print(f"e2e-real: skipped: {reason}")
        return _SKIPPED
    if reason := needs.packages():
        print(f"e2e-real: {reason}")
        return 1
    build.ensure(LineProgress())  # the control plane
    programs.ensure()
    images.ensure()
    build.program(HELM)
    _remove_leftovers()
    run = Path(tempfile.mkdtemp(prefix=_PREFIX))
    run.chmod(0o755)  # the embedded Postgres runs as another user
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inner = [sys.executable, "-m", "tests.real.sandbox", "--init", *command]
        namespaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--mount-proc"]
        ended = ["--fork", "--kill-child", "--"]
        try:
            for path in _cgroups(run.name).values():
                path.mkdir()
            sandbox = subprocess.Popen(
                # The kernel ends unshare with this program, and the namespaces with unshare.
                ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *namespaces, *ended, *inner],
                env=os.environ | _environment(run),
                pass_fds=[lock.fileno()],  # the folder is locked while a process of the run exists
            )
            return _wait(sandbox)
        finally:
            _remove(run)


def _environment(run: Path) -> dict[str, str]:
    """Every file of the run is in its folder: including those of the control plane, of Postgres and of pytest."""
    state, temporary = run / "state", run / "tmp"
    state.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    return {HOME: str(run), "XDG_STATE_HOME": str(state), "TMPDIR": str(temporary)}


def _wait(sandbox: subprocess.Popen[bytes]) -> int:
    """Wait for the end of the sandbox. A signal ends it with everything in it."""

    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in ends:  # a second signal must not interrupt the removal
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in ends:
        signal.signal(number, end)
    try:
        return sandbox.wait()
    finally:
        sandbox.kill()
        sandbox.wait()


def _remove_leftovers() -> None:
    """Remove the folders and cgroups of runs that crashed: those whose lock is free."""
    for run in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (run / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print(f"e2e-real: removing {run}, which a run left behind")
            _remove(run)


def _remove(run: Path) -> None:
    for hierarchy in needs.HIERARCHIES:
        for path in _folders((_CGROUPS / hierarchy).rglob(run.name)):
            _remove_cgroup(path)
    shutil.rmtree(run, ignore_errors=True)


def _folders(found: Iterator[Path]) -> Iterator[Path]:
    for top in list(found):
        yield from sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
        yield top


def _remove_cgroup(path: Path) -> None:
    """The kernel refuses the removal while processes of the cgroup end."""
    deadline = time.monotonic() + 10
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def init(command: Sequence[str]) -> int:
    """The first process of the namespace: it runs the command and collects every other process that ends.

    Returns:
        The exit code of the command.
    """
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    main_process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command receives it from the terminal
    while True:
        ended, status = os.wait()
        if ended == main_process.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    if sys.argv[1:2] == ["--init"]:
        sys.exit(init(sys.argv[2:]))
    sys.exit(main(sys.argv[1:]))
