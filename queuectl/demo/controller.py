"""queuectl on a local cluster: installed from deploy/ as in production, with `queuectl serve` as a process.

The process has only the rights of its ServiceAccount in deploy/. It uses an embedded Postgres and free loopback ports. All its
files are in one folder, which is removed when it stops.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx2

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import apply, manifests, optional, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.errors import QueuectlError
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import START_SECONDS, get_plain
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.supervisor import KeeperHandle

ACCOUNT: Final = "queuectl"
_PROGRAM: Final = "queuectl"
_STOP_SECONDS: Final = 20.0
_LAST_LINES: Final = 12


class ControllerFailed(QueuectlError):
    """queuectl ended, or did not become ready. The message ends with the last lines of its log."""


KUEUE_KEYS: Final = "kueue-keys"
"""The opt-in for Kueue's labels."""


def install(cluster: LocalCluster, *opt_ins: str) -> None:
    """Apply deploy/ without the Deployment, and wait until the admission policies have effect.

    Args:
        cluster: the cluster.
        opt_ins: names of files in deploy/optional that are also applied.

    Raises:
        BadInput: the server does not have a kind.
        ClusterError: a request failed, or the policies have no effect in time.
    """
    asyncio.run(_install(cluster.kubeconfig, opt_ins))


async def _install(kubeconfig: Path, opt_ins: Sequence[str]) -> None:
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        chosen = [document for name in opt_ins for document in optional(name)]
        await apply(api, [*manifests(controller=False), *chosen])
        await wait_until_in_force(api, kueue=KUEUE_KEYS in opt_ins)
    finally:
        await api.close()


def home_of(name: str) -> Path:
    """The folder of the controller of a cluster with this name.

    It is not under the home directory: as root, the embedded Postgres runs as the user `nobody`, which must be able to read it.
    """
    return Path(tempfile.gettempdir()) / f"queuectl-{name}-{os.geteuid()}"


class ControllerProcess:
    """A running `queuectl serve`. It ends with this process, unless it is detached.

    Attributes:
        home: its folder.
        environment: its variables.
        api: URL of the REST API.
        metrics: URL of /metrics.
        health: URL of /healthz and /readyz.
    """

    def __init__(
        self, home: Path, supervisor: KeeperHandle, environment: Mapping[str, str]
    ) -> None:
        self.home = home
        self._supervisor = supervisor
        self.environment = environment
        self.api = f"http://{environment['QUEUECTL_LISTEN']}"
        self.metrics = f"http://{environment['QUEUECTL_METRICS_LISTEN']}"
        self.health = f"http://{environment['QUEUECTL_HEALTH_LISTEN']}"

    @classmethod
    def start(
        cls,
        cluster: LocalCluster,
        settings: Mapping[str, str] | None = None,
        *,
        replica: str = "",
    ) -> ControllerProcess:
        """Start it on a cluster where it is installed. :meth:`wait_ready` waits until it is ready.

        Args:
            cluster: the cluster.
            settings: further QUEUECTL_… variables.
            replica: a suffix for one of several controllers of a cluster.

        Raises:
            ControllerFailed: its folder exists, so a controller of this name is running.
        """
        home = home_of(cluster.name + replica)
        if home.exists():
            raise ControllerFailed(f"{home} exists: stop the controller of this folder first")
        # Created inside the try block, so that an interrupt does not leave the folder behind.
        try:
            home.mkdir()
            home.chmod(0o755)  # independent of the umask
            account = cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, ACCOUNT)
            api, metrics, health = (f"{LOOPBACK}:{port}" for port in free_ports(3))
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(home),
                "TMPDIR": str(home),
                "XDG_STATE_HOME": str(home),
                "QUEUECTL_KUBECONFIG": str(account),
                "QUEUECTL_HOLDER": home.name,  # several processes on one machine are several candidates
                "QUEUECTL_LISTEN": api,
                "QUEUECTL_METRICS_LISTEN": metrics,
                "QUEUECTL_HEALTH_LISTEN": health,
            }
            supervisor = KeeperHandle.spawn(home, remove=True)
            controller = cls(home, supervisor, environment | dict(settings or {}))
            controller.restart()
        except BaseException:
            _take_down(home, KeeperHandle(home))
            raise
        return controller

    def restart(self) -> None:
        """Start it again after :meth:`kill`, on the same addresses and the same database."""
        self._supervisor.start(
            _PROGRAM,
            [sys.executable, "-c", "from queuectl.cli.main import run; run()", "serve"],
            env=dict(self.environment),
            cwd=self.home,
            log=self.log,
        )

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.home / "serve.log"

    def wait_ready(self, *, waiting: Callable[[], None] | None = None) -> None:
        """Wait until /readyz answers 200.

        Args:
            waiting: called repeatedly during the wait.

        Raises:
            ControllerFailed: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while (problem := self._problem()) is not None:
            program = self._supervisor.programs()[_PROGRAM]
            if not program.running or time.monotonic() > deadline:
                state = problem if program.running else f"ended with exit code {program.returncode}"
                lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise ControllerFailed(
                    "\n  ".join([f"queuectl serve: {state}; end of its log:", *lines])
                )
            if waiting is not None:
                waiting()
            time.sleep(0.05)

    def _problem(self) -> str | None:
        try:
            answer = get_plain(f"{self.health}/readyz")
        except httpx2.HTTPError as error:
            return str(error) or type(error).__name__
        return None if answer.is_success else answer.text

    @property
    def pid(self) -> int:
        """Process id of `queuectl serve`."""
        return self._supervisor.programs()[_PROGRAM].pid

    @property
    def ended(self) -> int | None:
        """Exit code of `queuectl serve`; None while it runs."""
        return self._supervisor.programs()[_PROGRAM].returncode

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._supervisor.programs()[_PROGRAM].running

    def detach(self) -> None:
        """Let it continue after this process, until :func:`take_down`."""
        self._supervisor.detach()

    def kill(self) -> None:
        """End it by SIGKILL. Its database shuts down cleanly and keeps its files."""
        self._supervisor.kill(_PROGRAM)

    def stop(self) -> None:
        """Stop it and remove its folder. Without effect if it has ended."""
        _take_down(self.home, self._supervisor)


def exists(name: str) -> bool:
    """Whether there is a controller of a cluster with this name, or what is left of one.

    Raises:
        ControllerFailed: its folder belongs to another user, so :func:`take_down` does not remove it.
    """
    home = home_of(name)
    if home.exists() and home.stat().st_uid != os.geteuid():
        raise ControllerFailed(f"{home} belongs to another user: remove it as that user or as root")
    return home.exists()


def take_down(name: str) -> bool:
    """Stop the controller of a cluster with this name and remove its folder.

    Returns:
        Whether there was one.
    """
    home = home_of(name)
    if not home.is_dir() or home.stat().st_uid != os.geteuid():
        return False
    _take_down(home, KeeperHandle(home))
    return True


def _take_down(home: Path, supervisor: KeeperHandle) -> None:
    if supervisor.alive():
        if _PROGRAM in supervisor.programs():
            supervisor.stop(_PROGRAM, _STOP_SECONDS)
        supervisor.shutdown()
    remove_tree(home)
