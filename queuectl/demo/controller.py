"""queuectl on a local cluster as in production: installed from deploy/, `queuectl serve` as a process of its own.

It runs under the ServiceAccount that deploy/ gives it and no other rights, with an embedded Postgres, on free loopback
ports. Everything it writes stands in one folder, which goes with it.
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
from queuectl.localcluster.client import get_plain
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.supervisor import Supervisor

ACCOUNT: Final = "queuectl"
_PROGRAM: Final = "queuectl"
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_LAST_LINES: Final = 12


class ControllerFailed(QueuectlError):
    """queuectl ended, or did not become ready; the message ends with its last words."""


KUEUE_KEYS: Final = "kueue-keys"
"""The opt-in by which Kueue's labels count."""


def install(cluster: LocalCluster, *opt_ins: str) -> None:
    """Apply deploy/ without what only runs inside a cluster, and wait until the admission policies act.

    Args:
        cluster: where.
        opt_ins: names of files in deploy/optional to apply, too.

    Raises:
        BadInput: the server does not know a kind.
        ClusterError: a request failed, or the policies do not act in time.
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
    """The folder of the controller that belongs to a cluster of this name.

    Not under the home directory: as root the embedded Postgres runs as `nobody`, who must be able to get there.
    """
    return Path(tempfile.gettempdir()) / f"queuectl-{name}-{os.geteuid()}"


class Controller:
    """A running `queuectl serve`; it ends with this process, unless it is detached.

    Attributes:
        home: its folder.
        api: URL of the REST API.
        metrics: URL of /metrics, /healthz and /readyz.
    """

    def __init__(self, home: Path, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        self.home = home
        self._supervisor = supervisor
        self._environment = environment
        self.api = f"http://{environment['QUEUECTL_LISTEN']}"
        self.metrics = f"http://{environment['QUEUECTL_METRICS_LISTEN']}"

    @classmethod
    def start(
        cls,
        cluster: LocalCluster,
        settings: Mapping[str, str] | None = None,
        *,
        replica: str = "",
    ) -> Controller:
        """Start it on a cluster where it was installed; :meth:`wait_ready` tells when it works.

        Args:
            cluster: to serve.
            settings: further QUEUECTL_… variables.
            replica: tells apart several controllers of one cluster.

        Raises:
            ControllerFailed: its folder exists, so one runs for a cluster of this name already.
        """
        home = home_of(cluster.name + replica)
        if home.exists():
            raise ControllerFailed(f"{home} exists: take down what runs there first")
        # The folder is made inside: an interrupt right after that must not leave it behind.
        try:
            home.mkdir()
            home.chmod(0o755)  # whatever the umask says
            account = cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, ACCOUNT)
            api, metrics = (f"{LOOPBACK}:{port}" for port in free_ports(2))
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(home),
                "TMPDIR": str(home),
                "XDG_STATE_HOME": str(home),
                "QUEUECTL_KUBECONFIG": str(account),
                "QUEUECTL_HOLDER": home.name,  # several on one machine are several candidates
                "QUEUECTL_LISTEN": api,
                "QUEUECTL_METRICS_LISTEN": metrics,
            }
            supervisor = Supervisor.spawn(home, remove=True)
            controller = cls(home, supervisor, environment | dict(settings or {}))
            controller.restart()
        except BaseException:
            _take_down(home, Supervisor(home))
            raise
        return controller

    def restart(self) -> None:
        """Start it again after :meth:`kill`, on the same addresses and the same database."""
        self._supervisor.start(
            _PROGRAM,
            [sys.executable, "-c", "from queuectl.cli.main import run; run()", "serve"],
            env=dict(self._environment),
            cwd=self.home,
            log=self.log,
        )

    @property
    def log(self) -> Path:
        """What it says."""
        return self.home / "serve.log"

    def wait_ready(
        self, seconds: float = _READY_SECONDS, *, waiting: Callable[[], None] | None = None
    ) -> None:
        """Wait until /readyz says so.

        Args:
            seconds: how long.
            waiting: is called every now and then.

        Raises:
            ControllerFailed: it ended, or is not ready after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while (problem := self._problem()) is not None:
            program = self._supervisor.programs()[_PROGRAM]
            if not program.running or time.monotonic() > deadline:
                fate = problem if program.running else f"ended with code {program.returncode}"
                words = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise ControllerFailed(
                    "\n  ".join([f"queuectl serve: {fate}; its last words:", *words])
                )
            if waiting is not None:
                waiting()
            time.sleep(0.05)

    def _problem(self) -> str | None:
        try:
            answer = get_plain(f"{self.metrics}/readyz")
        except httpx2.HTTPError as error:
            return str(error) or type(error).__name__
        return None if answer.is_success else answer.text

    @property
    def pid(self) -> int:
        """Process id of `queuectl serve`."""
        return self._supervisor.programs()[_PROGRAM].pid

    def detach(self) -> None:
        """Let it outlive this process, until :func:`take_down`."""
        self._supervisor.detach()

    def kill(self) -> None:
        """End it by SIGKILL; its database goes down in order, and stays where it is."""
        self._supervisor.kill(_PROGRAM)

    def stop(self) -> None:
        """End it in order and remove its folder. Harmless when it has ended."""
        _take_down(self.home, self._supervisor)


def take_down(name: str) -> bool:
    """End the controller of a cluster of this name and remove its folder.

    Returns:
        Whether there was one.
    """
    home = home_of(name)
    if not home.is_dir() or home.stat().st_uid != os.geteuid():
        return False
    _take_down(home, Supervisor(home))
    return True


def _take_down(home: Path, supervisor: Supervisor) -> None:
    if supervisor.alive():
        if _PROGRAM in supervisor.programs():
            supervisor.stop(_PROGRAM, _STOP_SECONDS)
        supervisor.shutdown()
    remove_tree(home)
