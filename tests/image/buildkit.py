"""A BuildKit of one process: it starts in its own directory and namespaces, and ends with the caller."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import build
from queuectl.localcluster.supervisor import KeeperHandle
from tests.image.programs import Programs, find

_START_SECONDS: Final = 30.0
_KEPT_MEGABYTES: Final = 4000
_NAME: Final = "buildkitd"
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class BuildKit:
    """A running daemon."""

    programs: Programs
    address: str

    def build(self, *arguments: str, context: Path) -> None:
        """Build the Dockerfile of a folder; the output of the steps is on standard error.

        Raises:
            subprocess.CalledProcessError: a step failed.
        """
        # The proxy of BuildKit fetches what a step downloads. It trusts the certificate authorities of this machine, also
        # that of a proxy in its network, and the image has none of them.
        network = ("--opt", "force-network-mode=host", "--allow", "network.host")
        sources = ("--local", f"context={context}", "--local", f"dockerfile={context}")
        subprocess.run(
            [
                *self._client("build"),
                *("--progress", "plain", "--frontend", "dockerfile.v0"),
                *(*network, *sources, *arguments),
            ],
            check=True,
        )

    def answers(self) -> bool:
        done = subprocess.run(self._client("debug", "workers"), check=False, capture_output=True)
        return done.returncode == 0

    def _client(self, *arguments: str) -> Sequence[str]:
        return [str(self.programs.buildctl), "--addr", self.address, *arguments]


@contextlib.contextmanager
def running() -> Iterator[BuildKit]:
    """Start BuildKit, and end it and all of its build steps after the block, even if this process is killed.

    Its layers remain in the cache folder of queuectl. One process at a time uses them.
    """
    programs = find()
    state = build.root() / "image" / "buildkit"
    state.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="queuectl-buildkit-"))
    with state.with_name("buildkit.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        supervisor = KeeperHandle.spawn(directory, remove=True)
        try:
            yield _start(supervisor, programs, state)
        finally:
            supervisor.shutdown()
            _remove_control_groups()


def _start(supervisor: KeeperHandle, programs: Programs, state: Path) -> BuildKit:
    directory = supervisor.directory
    address = f"unix://{directory}/socket"
    # Mounts and build steps end with these namespaces.
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    options = {
        "--root": state,
        "--addr": address,
        "--otel-socket-path": directory / "traces",
        "--containerd-worker": "false",
        "--oci-worker-net": "host",
        "--oci-worker-gc-keepstorage": _KEPT_MEGABYTES,
        "--allow-insecure-entitlement": "network.host",
    }
    words = [f"{name}={value}" for name, value in options.items()]
    log = directory / "log"
    supervisor.start(
        _NAME,
        [*namespaces, programs.buildkitd, "--proxy-network", *words],
        env=dict(os.environ),
        cwd=directory,
        log=log,
    )
    daemon = BuildKit(programs, address)
    deadline = time.monotonic() + _START_SECONDS
    while not daemon.answers():
        if time.monotonic() > deadline or not supervisor.programs()[_NAME].running:
            raise RuntimeError(f"BuildKit does not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return daemon


def _remove_control_groups() -> None:
    """BuildKit leaves control groups, including those of steps that were killed. A group with a process cannot be removed."""
    for top in (*_CONTROL_GROUPS.glob("buildkit"), *_CONTROL_GROUPS.glob("*/buildkit")):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
