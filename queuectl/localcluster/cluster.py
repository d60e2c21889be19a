"""A running cluster, for tests, the demo, benchmarks and manual use."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import secrets
import shutil
import signal
import ssl
import time
from typing import TYPE_CHECKING, Self

from queuectl.localcluster import (
    bootstrap,
    build,
    components,
    installation,
    layout,
    operators,
    versions,
)
from queuectl.localcluster.bootstrap import Probe
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import START_SECONDS, Client, tls, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.nodes import Nodes
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.spec import ClusterSpec
from queuectl.localcluster.supervisor import KeeperHandle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from queuectl.localcluster.certificates import KeyPair
    from queuectl.localcluster.layout import Layout
    from queuectl.localcluster.progress import StepProgress

_SILENT = NoProgress()
_API_SERVER_STOP_SECONDS = 15.0
_ETCD_STOP_SECONDS = 60.0


class LocalCluster:
    """A control plane on this machine. As a context manager, it stops at the end.

    Attributes:
        client: An API client with all rights.
        nodes: The nodes: create, lose, restore, cordon, delete.
    """

    def __init__(self, place: Layout, supervisor: KeeperHandle) -> None:
        """Use `start` or `find`."""
        self._layout = place
        self._supervisor = supervisor
        self.client = bootstrap.admin(place)
        self.nodes = Nodes(self.client)

    @classmethod
    def start(
        cls,
        spec: ClusterSpec | None = None,
        *,
        name: str | None = None,
        etcd_data: Path | None = None,
        progress: StepProgress = _SILENT,
    ) -> LocalCluster:
        """Start a cluster and wait until it is ready. The first start on a machine builds the programs.

        The cluster ends with this process, even if that is killed, unless it is detached.

        Args:
            spec: Its components and nodes; the default is eight nodes.
            name: Its name, for `find`; None = a random name.
            etcd_data: Data folder of the etcd of a stopped cluster (see `stop_etcd`), of which this cluster gets a copy.
                The nodes are then in it, and the nodes of the spec are further ones.
            progress: Receives the steps.

        Raises:
            BuildError: A program cannot be built; the message names the step and its log.
            LocalClusterError: The name is taken, or a component does not start.
        """
        spec = spec or ClusterSpec()
        own = [one.unit for one in operators.with_needs(spec.operators)]
        units = {unit.key: unit for unit in (*versions.units(spec.kubernetes), *own)}
        assets = build.ensure(progress, units=list(units.values()))
        began = time.monotonic()
        place = layout.create(name)
        try:
            supervisor = KeeperHandle.spawn(place.home, remove=True)
            try:
                if etcd_data is not None:
                    shutil.copytree(etcd_data, place.etcd_data)
                place = bootstrap.Bootstrap(place, supervisor, assets, spec).run(progress)
            except BaseException:
                supervisor.shutdown()
                raise
        except BaseException:
            place.remove()
            raise
        progress.finish(
            f"Cluster {place.name} is up after {time.monotonic() - began:.1f} s: {place.server}"
        )
        return cls(place, supervisor)

    @classmethod
    def find(cls, name: str) -> LocalCluster:
        """A running cluster.

        Raises:
            LocalClusterError: No cluster has this name, or it does not run.
        """
        place = layout.existing(name)
        supervisor = KeeperHandle(place.home)
        if not supervisor.alive():
            raise LocalClusterError(
                f"cluster {name} no longer runs; take it down to remove what is left of it"
            )
        if "commands" not in place.description:
            raise LocalClusterError(f"cluster {name} is still starting")
        return cls(place, supervisor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every process of the cluster and remove its files.  Without effect if it is stopped."""
        self.client.close()
        self._supervisor.shutdown()
        self._layout.remove()

    def detach(self) -> None:
        """Let the cluster continue after this process, until `stop` or `queuectl localcluster down`."""
        self._supervisor.detach()

    @property
    def supervisor(self) -> KeeperHandle:
        """The supervisor of its programs. Other programs that it starts also end with the cluster."""
        return self._supervisor

    @property
    def name(self) -> str:
        """Its name."""
        return self._layout.name

    @property
    def server(self) -> str:
        """URL of its API server."""
        return self._layout.server

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig with all rights."""
        return self._layout.kubeconfig("admin")

    @property
    def kubectl(self) -> Path | None:
        """The kubectl of the same version, if there is one."""
        release = self._layout.description["spec"]["kubernetes"]
        assets = build.existing(versions.kubectl(release))
        return assets.programs["kubectl"] if assets is not None else None

    @property
    def authority(self) -> bytes:
        """The CA of the API server, as PEM."""
        return (self._layout.pki / "ca.crt").read_bytes()

    def tls(self) -> ssl.SSLContext:
        """A TLS context with all rights, for clients that are faster than `client`."""
        return tls(self.authority, bootstrap.admin_pair(self._layout))

    def log(self, component: str) -> Path:
        """The log of a component."""
        return self._layout.logs / f"{component}.log"

    def pids(self) -> dict[str, int]:
        """Process id of each component that runs."""
        return {name: one.pid for name, one in self._supervisor.programs().items() if one.running}

    def health(self) -> dict[str, str | None]:
        """The problem of each component; None for a healthy one."""
        answers: dict[str, str | None] = {}
        for name in self._layout.description["commands"]:
            with contextlib.closing(Probe(self._layout, name)) as probe:
                answers[name] = probe.problem()
        return answers

    def kubeconfig_for_user(self, name: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig for a user. The user has only the rights that RBAC grants to the name and the groups."""
        identity = self._authority().client(name, groups)
        return self._write_kubeconfig(name, identity)

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of an existing ServiceAccount, valid for a day.

        Args:
            namespace: Its namespace.
            name: Its name.

        Raises:
            RequestError: The ServiceAccount does not exist.
        """
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": int(dt.timedelta(days=1).total_seconds())},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.client.create(path, request)["status"]["token"]
        return self._write_kubeconfig(f"system:serviceaccount:{namespace}:{name}", token)

    def client_for_user(self, name: str, groups: Iterable[str] = ()) -> Client:
        """An API client for a user. Close it after use."""
        return Client(self.server, self.authority, self._authority().client(name, groups))

    def anonymous_client(self) -> Client:
        """An API client without credentials. Close it after use."""
        return Client(self.server, self.authority)

    @contextlib.contextmanager
    def namespace(
        self, prefix: str = "test", *, labels: dict[str, str] | None = None
    ) -> Iterator[str]:
        """A new namespace, ready for pods. It is deleted with all its objects at the end."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.client.create(
            "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}}
        )
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        try:
            wait_until(
                lambda: self.client.exists(account),
                f"the service account of {name}",
                START_SECONDS,
            )
            yield name
        finally:
            self.client.delete(f"/api/v1/namespaces/{name}", missing_ok=True)
            gone = f"namespace {name} to go"
            wait_until(
                lambda: not self.client.exists(f"/api/v1/namespaces/{name}"),
                gone,
                START_SECONDS,
            )

    def kill(self, component: str) -> None:
        """End a component by SIGKILL, and wait until it has ended."""
        self._supervisor.kill(component)

    def start_component(self, component: str) -> None:
        """Start a stopped component, and wait until it is ready."""
        bootstrap.start(self._layout, self._supervisor, component)
        bootstrap.wait_healthy(self._layout, self._supervisor, component)

    def add_operator(self, name: str, *, progress: StepProgress = _SILENT) -> None:
        """Run an operator of `operators.OPERATORS` and those that it needs, and wait until it is ready.

        Without effect if it runs in this cluster. It is built at its first use on this machine, which takes minutes.

        Args:
            name: Its name.
            progress: Receives the steps of the build.

        Raises:
            BuildError: It cannot be built; the message names the step and its log.
            LocalClusterError: It does not start.
        """
        for one in operators.with_needs([name]):
            if one.name in self._layout.description["commands"]:
                continue
            build.ensure(progress, units=[one.unit])
            self._layout = installation.prepare(self._layout, [one])
            installation.apply(self._layout, self.client, one)
            self.start_component(one.name)
            installation.wait_webhooks(self._layout, one)

    def pause(self, component: str) -> None:
        """Freeze a component, like a hanging machine: connections stay open, and no request is answered."""
        self._supervisor.pause(component)

    def resume(self, component: str) -> None:
        """Let a frozen component continue."""
        self._supervisor.signal(component, signal.SIGCONT)

    def stop_etcd(self) -> Path:
        """Stop the programs of the cluster in order, so that etcd has all writes on the disk.

        Returns:
            The data folder of etcd, for `start` of another cluster. The end of this cluster removes it.
        """
        first = [
            name for name in self.pids() if name not in (components.API_SERVER, components.ETCD)
        ]
        for name in (*first, components.API_SERVER, components.ETCD):
            self._supervisor.stop(name, _ETCD_STOP_SECONDS)
        return self._layout.etcd_data

    def kill_apiserver(self) -> None:
        """End the API server by SIGKILL."""
        self.kill(components.API_SERVER)

    def start_apiserver(self) -> None:
        """Start the API server again, on the same port and state, and wait until it is ready."""
        self.start_component(components.API_SERVER)

    def restart_apiserver(self) -> None:
        """Stop the API server by SIGTERM, as in an upgrade, and start it again."""
        self._supervisor.stop(components.API_SERVER, _API_SERVER_STOP_SECONDS)
        self.start_apiserver()

    def _authority(self) -> Authority:
        return Authority.load(self._layout.pki / "ca.crt", self._layout.pki / "ca.key")

    def _write_kubeconfig(self, user: str, identity: KeyPair | str) -> Path:
        return layout.write_kubeconfig(
            self._layout.kubeconfig("user-" + re.sub(r"[^A-Za-z0-9.-]", "-", user)),
            cluster=self.name,
            server=self.server,
            authority=self.authority,
            user=user,
            identity=identity,
        )


def take_down(name: str) -> bool:
    """Stop a cluster and remove its files, also after a crash. It need not be complete.

    Returns:
        Whether there was a cluster of this name.
    """
    if name not in layout.names():
        return False
    home = layout.clusters() / name
    KeeperHandle(home).shutdown()
    remove_tree(home)
    return True
