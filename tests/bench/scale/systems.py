"""The systems that are measured: the floor, which is Kubernetes without a queue controller, and queuectl as in production.

A system is installed once, in the fill. Its objects in the cluster are then in the data of etcd, and its own data is saved next to it.
For each row, a new object of the class starts on the restored cluster.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import httpx2

from queuectl.cluster.adapter import LEASE, SYSTEM_NAMESPACE
from queuectl.db.embedded import EmbeddedServer
from queuectl.demo.api_connection import ApiConnection, ApiRefused
from queuectl.demo.controller import ControllerProcess, install
from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import UnreachableError
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.gangs import Gang, plain_job, queued_job
from tests.bench.scale.kubelet import Kubelet
from tests.bench.scale.kueue import KUEUES, Kueue
from tests.bench.scale.processes import Usage
from tests.bench.stage import descendants
from tests.operations.servers import PROGRAMS
from tests.support.controllers import CheckedController
from tests.support.postgres import server_directory

ROOT: Final = Path(__file__).parents[3]
_END_SECONDS: Final = 60.0
_LEADER: Final = "queuectl"
"""The first replica in figures."""


def commit() -> str:
    """The commit of the benchmark, with ``+`` if files are changed."""
    described = ["git", "describe", "--always", "--exclude=*", "--abbrev=9", "--dirty=+"]
    return subprocess.check_output(described, cwd=ROOT, text=True).strip()


class System(Protocol):
    """A system under test on one cluster. A :class:`Kubelet` starts its replicas again that end by themselves.

    Attributes:
        name: in commands and tables.
        fill_name: of the fills that it restores. Two configurations of one program restore the same ones.
        lease: namespace and name of the Lease of its leader; None without one.
    """

    name: str
    fill_name: str
    lease: tuple[str, str] | None

    def not_offered(self, row: str) -> str | None:
        """Why a row is not measured, from the documentation of the system; None = it is measured. ``row``: its letter."""
        ...

    def version(self) -> str:
        """The version or commit. A snapshot of another version is refused."""
        ...

    def settings(self) -> Mapping[str, str]:
        """The settings that are not defaults, the client limits, and the durability of its data."""
        ...

    def install(self, cluster: LocalCluster) -> None:
        """Create what the system needs in a new cluster: kinds, rights, policies. Before :meth:`start`."""
        ...

    def start(self, cluster: LocalCluster, saved: Path | None = None) -> None:
        """Start its processes and wait until they are ready. ``saved``: the folder of :meth:`save`."""
        ...

    def configure(self, fleet: Fleet) -> None:
        """Create the quota tree of a fleet, and wait until it has effect. Once, in the fill."""
        ...

    def edit(self, document: Document) -> None:
        """Create or replace an object of the configuration, given in queuectl's names. It returns when the system has accepted it.

        Raises:
            UnreachableError: the system does not answer.
        """
        ...

    def job(self, gang: Gang) -> Document:
        """The Job of a gang."""
        ...

    def refusal(self, gang: Gang) -> str | None:
        """The reason for which a gang is pending, from the status that users read; None before there is one."""
        ...

    def problems(self) -> list[str]:
        """Problems that its own log or state shows at the end of a row."""
        ...

    def remarks(self) -> list[str]:
        """Facts that a reader of its figures must know: programs that ended by themselves, errors in its log."""
        ...

    def usage(self) -> Usage:
        """CPU time, memory and restarts of its programs up to now, including those that have ended."""
        ...

    def add_standby(self) -> None:
        """Start a second replica and wait until it is ready."""
        ...

    def kill_leader(self) -> None:
        """End the leader by SIGKILL."""
        ...

    def stop_leader(self) -> None:
        """End the leader in order, so that it gives its lease back."""
        ...

    def start_leader(self) -> None:
        """Start the leader again after :meth:`stop_leader`, and wait until it is ready."""
        ...

    def halt(self) -> None:
        """Stop its processes in order; its data stays for :meth:`save`."""
        ...

    def save(self, folder: Path) -> None:
        """Keep its own data in an existing folder, after :meth:`halt`."""
        ...

    def stop(self) -> None:
        """Stop its processes and remove its files. Without effect if that is done."""
        ...


class Floor(System):
    """Kubernetes alone: kube-scheduler places pod by pod. It is a lower bound, and it does not start gangs."""

    name = fill_name = "floor"
    lease: tuple[str, str] | None = None

    def not_offered(self, row: str) -> str | None:
        """Rows about a queue, and its leader."""
        needs = {
            "c": "no queue",
            "d": "no quota to reclaim",
            "g": "no queue",
            "h": "no queue",
            "i": "no controller",
        }
        return needs.get(row)

    def version(self) -> str:
        """The version of Kubernetes is in the manifest already."""
        return "none"

    def settings(self) -> Mapping[str, str]:
        """None."""
        return {}

    def edit(self, document: Document) -> None:
        """Nothing."""

    def job(self, gang: Gang) -> Document:
        """Without queue and topology."""
        return plain_job(gang)

    def refusal(self, gang: Gang) -> str | None:
        """Never."""
        return None

    def problems(self) -> list[str]:
        """None."""
        return []

    def remarks(self) -> list[str]:
        """None."""
        return []

    def usage(self) -> Usage:
        """Nothing."""
        return Usage.of({})


class Queuectl:
    """queuectl as deploy/ installs it, with a Postgres that syncs to the disk."""

    name = fill_name = "queuectl"
    lease: tuple[str, str] | None = (SYSTEM_NAMESPACE, LEASE)

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: EmbeddedServer | None = None
        self._directory: Path | None = None
        self._cluster: LocalCluster | None = None
        self._replicas: list[ControllerProcess] = []
        self._kubelet = Kubelet()

    def not_offered(self, row: str) -> str | None:
        """All rows are measured."""
        return None

    def version(self) -> str:
        """The commit, with ``+`` if files are changed."""
        return commit()

    def settings(self) -> Mapping[str, str]:
        """The defaults of queuectl; Postgres with fsync, on a disk."""
        return {
            "settings": "defaults",
            "concurrent writes to the API server": os.environ.get("QUEUECTL_IN_FLIGHT", "32"),
            "Postgres": f"{PROGRAMS.major}, fsync on, synchronous_commit on, on a disk",
        }

    def install(self, cluster: LocalCluster) -> None:
        """Rights and admission policies of deploy/."""
        install(cluster)

    def start(self, cluster: LocalCluster, saved: Path | None = None) -> None:
        """Start Postgres and one replica."""
        self._cluster = cluster
        self._directory = self._stack.enter_context(server_directory(on_disk=True))
        if saved is not None:
            _copy(saved / "database", self._directory / "data")
        self._server = EmbeddedServer(self._directory, binaries=PROGRAMS)
        self._stack.callback(lambda: asyncio.run(self._postgres.stop()))
        asyncio.run(self._server.start())
        self._add_replica(_LEADER, "")

    def _add_replica(self, name: str, suffix: str) -> None:
        assert self._cluster is not None
        settings = {"QUEUECTL_DATABASE_URL": self._postgres.url()}
        replica = CheckedController.start(self._cluster, settings, replica=suffix)
        self._replicas.append(replica)
        replica.wait_ready()
        self._kubelet.keep(name, replica)

    @property
    def _postgres(self) -> EmbeddedServer:
        assert self._server is not None
        return self._server

    @property
    def leader(self) -> ControllerProcess:
        """The replica that was started first."""
        return self._replicas[0]

    def configure(self, fleet: Fleet) -> None:
        """Through the REST API, which answers when the configuration is stored."""
        with ApiConnection(self.leader.api) as rest:
            rest.apply(fleet.configuration())

    def edit(self, document: Document) -> None:
        """Through the REST API."""
        with ApiConnection(self.leader.api) as rest:
            try:
                rest.apply([document])
            except ApiRefused as error:
                if isinstance(error.__cause__, httpx2.HTTPError):
                    raise UnreachableError(str(error)) from error
                raise

    def job(self, gang: Gang) -> Document:
        """With the labels of queuectl."""
        return queued_job(gang)

    def refusal(self, gang: Gang) -> str | None:
        """From the REST API."""
        with ApiConnection(self.leader.api) as rest:
            try:
                reason = rest.workload(gang.team, gang.name)["reason"]
            except ApiRefused:  # the ledger does not have it yet
                return None
        if reason["code"] == "Queued":
            return None
        return f"{reason['code']} ({reason['details'].get('proof')}): {reason['message']}"

    def problems(self) -> list[str]:
        """None here: :class:`CheckedController` fails the row if a unit was set aside."""
        return []

    def remarks(self) -> list[str]:
        """Replicas that have ended by themselves."""
        return self._kubelet.remarks()

    def usage(self) -> Usage:
        """Of the replicas and Postgres."""
        postmaster = self._postgres.pid
        pids = [] if postmaster is None else [postmaster, *descendants(postmaster)]
        return self._kubelet.usage() | Usage.of({"Postgres": pids})

    def add_standby(self) -> None:
        """A second replica with the same database."""
        self._add_replica("queuectl standby", "b")

    def kill_leader(self) -> None:
        """The first replica."""
        self._kubelet.release(_LEADER)
        self.leader.kill()

    def stop_leader(self) -> None:
        """The first replica, by SIGTERM."""
        self._kubelet.release(_LEADER)
        os.kill(self.leader.pid, signal.SIGTERM)
        wait_until(lambda: not self.leader.running, "the end of the leader", _END_SECONDS)

    def start_leader(self) -> None:
        """The first replica, on the same database."""
        self.leader.restart()
        self.leader.wait_ready()
        self._kubelet.keep(_LEADER, self.leader)

    def halt(self) -> None:
        """Stop the replicas, then Postgres."""
        self._kubelet.close()
        while self._replicas:
            self._replicas.pop().stop()
        asyncio.run(self._postgres.stop())

    def save(self, folder: Path) -> None:
        """The data folder of Postgres."""
        _copy(self._postgres.data_directory, folder / "database")

    def stop(self) -> None:
        """Replicas, Postgres and their folders."""
        self._kubelet.close()
        with self._stack:
            while self._replicas:
                self._stack.callback(self._replicas.pop(0).stop)


def _copy(source: Path, target: Path) -> None:
    """Copy with owners: for root, Postgres runs as another account."""
    if shutil.which("cp") is None:
        raise FileNotFoundError("the program cp is needed")
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)


SYSTEMS: Final[Mapping[str, Callable[[], System]]] = {
    "floor": Floor,
    "queuectl": Queuectl,
    **{name: partial(Kueue, name) for name in KUEUES},
}
"""By name: makes a system for one cluster."""


def make_system(name: str) -> System:
    """A system for one cluster.

    Raises:
        ValueError: there is none of this name.
    """
    try:
        return SYSTEMS[name]()
    except KeyError:
        raise ValueError(f"no system is named {name}; there are {', '.join(SYSTEMS)}") from None
