"""The aggregated API with two replicas behind one address: a replica dies, each replica has its most watches, and Helm removes it all."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

import httpx2
import pytest

from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import Client, tls, wait_until
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.visibility.app import MOST_OF_CALLER, MOST_WATCHES
from tests.operations.test_visibility import (
    API_SERVICE,
    JOBS,
    available,
    leads_to,
    namespace_deletion,
)
from tests.support.chart import helm_program
from tests.support.controllers import CheckedController
from tests.support.controlplane import ENGINEER
from tests.system.actions import outside_database
from tests.system.demo_cluster import tools
from tests.system.installation import QUICK, Installation, Workspace
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(1200)]

HELM: Final = "helm install queuectl deploy/chart -n queuectl-system --create-namespace --set image.repository=queuectl"
WATCH: Final = {"watch": "1", "timeoutSeconds": "600"}


@dataclass
class Service:
    """A port that leads each connection to the next of its backends, as a Service does for pods that it takes to be ready.

    Attributes:
        port: on which it listens.
        backends: the ports of the replicas.
        connections: for each backend, the connections that it has accepted.
    """

    port: int
    backends: list[int]
    connections: Counter[int] = field(default_factory=Counter)

    @contextmanager
    def listening(self) -> Iterator[None]:
        with closing(socket.create_server((LOOPBACK, self.port), backlog=1024)) as listener:
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
            yield

    def _serve(self, listener: socket.socket) -> None:
        turns = cycle(range(1 << 30))
        with suppress(OSError):  # the listener is closed
            while True:
                accepted, _ = listener.accept()
                backend = self.backends[next(turns) % len(self.backends)]
                threading.Thread(target=self._join, args=(accepted, backend), daemon=True).start()

    def _join(self, accepted: socket.socket, backend: int) -> None:
        with accepted, suppress(OSError), socket.create_connection((LOOPBACK, backend)) as joined:
            self.connections[backend] += 1
            back = threading.Thread(target=_copy, args=(joined, accepted), daemon=True)
            back.start()
            _copy(accepted, joined)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Pair:
    """Two replicas of queuectl with one database.

    Attributes:
        installation: with the first replica.
        replicas: by the port of the aggregated API.
        service: to which the APIService leads.
    """

    installation: Installation
    replicas: dict[int, CheckedController]
    service: Service

    @contextmanager
    def only(self, port: int) -> Iterator[None]:
        """Lead new connections to one replica, and end the others."""
        before = list(self.service.backends)
        self.service.backends[:] = [port]
        unused = [one for one in self.replicas if one != port]
        for one in unused:
            self.replicas[one].kill()
        try:
            yield
        finally:
            for one in unused:
                self.replicas[one].restart()
                self.replicas[one].wait_ready()
            self.service.backends[:] = before


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    nodes = NodeSpec(racks_per_block=1, hosts_per_rack=2)
    shape = ClusterSpec(nodes=(nodes,), fsync=False, operators=())
    with outside_database() as database, LocalCluster.start(shape, progress=LineProgress()) as made:
        install(made, KUEUE_KEYS, "visibility")
        port, *backends = free_ports(3)
        service = Service(port, backends)
        leads_to(made, port)
        made.client.apply(*ENGINEER)
        replicas: dict[int, CheckedController] = {}
        try:
            for number, backend in enumerate(backends):
                settings = {
                    "QUEUECTL_DATABASE_URL": database.url(),
                    "QUEUECTL_VISIBILITY_LISTEN": f"{LOOPBACK}:{backend}",
                    "QUEUECTL_VISIBILITY_HOSTS": "queuectl-visibility.queuectl-system.svc",
                }
                started = CheckedController.start(made, QUICK | settings, replica=f"-{number}")
                assert isinstance(started, CheckedController)
                replicas[backend] = started
                started.wait_ready()
            with service.listening(), ApiConnection(replicas[backends[0]].api) as rest:
                wait_until(lambda: available(made), "the APIService", 120.0)
                yield Pair(Installation(made, replicas[backends[0]], rest), replicas, service)
        finally:
            for one in replicas.values():
                one.stop()


@pytest.fixture(scope="module")
def team(pair: Pair) -> Iterator[Workspace]:
    with pair.installation.workspace(8, "team-a") as workspace:
        workspace.job("first", PodSetManifest(1, gpus=8))
        workspace.until_state("first", "Running")
        yield workspace


# ---- one replica ends


def options_of(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """The options of a client of the API server for a user with all rights."""
    pki = cluster.kubeconfig.parents[1] / "pki"
    users = Authority.load(pki / "ca.crt", pki / "ca.key")
    identity = users.client(name, ["system:masters"])
    verify = tls(cluster.authority, identity)
    return {"base_url": cluster.server, "verify": verify, "trust_env": False, "timeout": 120.0}


def events(pair: Pair, version: str) -> set[tuple[str, str]]:
    """The type and the name of each event in the three seconds of a watch from this version, through the API server."""
    query = {"watch": "1", "timeoutSeconds": "3", "resourceVersion": version}
    with httpx2.Client(**options_of(pair.installation.cluster, "reader")) as client:
        answer = client.get(JOBS.format("team-a"), params=query)
    if answer.is_error:
        return set()
    read = [json.loads(line) for line in answer.text.splitlines()]
    return {(one["type"], one["object"]["metadata"].get("name", "")) for one in read}


def test_a_watch_continues_on_each_replica_when_the_other_one_ends(
    pair: Pair, team: Workspace
) -> None:
    """One of the two is the leader. A client continues from the version that it got before."""
    cluster = pair.installation.cluster
    for number, port in enumerate(pair.replicas):
        version = cluster.client.get(JOBS.format("team-a"))["metadata"]["resourceVersion"]
        name = f"next-{number}"
        with pair.only(port):
            team.job(name, PodSetManifest(1, gpus=8))
            wait_until(
                lambda version=version, name=name: (
                    ("ADDED", f"job-{name}") in events(pair, version)
                ),  # type: ignore[misc]
                f"{name} on the replica that is left",
                120.0,
            )
            assert available(cluster)
            assert "not within" not in namespace_deletion(pair.installation, name, 90.0)
    assert pair.service.connections.keys() == pair.replicas.keys()


# ---- the most watches


def test_a_replica_with_the_most_watches_refuses_more_and_still_answers(
    pair: Pair, team: Workspace
) -> None:
    """Without an answer, the API server would delete no namespace."""
    [port, *_] = pair.replicas
    with pair.only(port):
        wait_until(lambda: bool(events(pair, "")), "the replica answers", 60.0)
        asyncio.run(with_most_watches(pair, team))
        wait_until(lambda: bool(events(pair, "")), "a watch after the others have ended", 60.0)


async def with_most_watches(pair: Pair, team: Workspace) -> None:
    cluster, path = pair.installation.cluster, JOBS.format("team-a")
    found: list[int] = []
    async with AsyncExitStack() as opened:
        for number in range(MOST_WATCHES // MOST_OF_CALLER + 1):
            options = options_of(cluster, f"user-{number}")
            limits = httpx2.Limits(max_connections=None)
            client = await opened.enter_async_context(httpx2.AsyncClient(**options, limits=limits))
            for _ in range(MOST_OF_CALLER):
                watch = client.stream("GET", path, params=WATCH)
                found.append((await opened.enter_async_context(watch)).status_code)
        assert Counter(found) == {200: MOST_WATCHES, 429: MOST_OF_CALLER}
        assert found[:MOST_WATCHES] == [200] * MOST_WATCHES

        listed = await asyncio.to_thread(cluster.client.get, path)
        assert "job-first" in [one["metadata"]["name"] for one in listed["items"]]
        deletion = await asyncio.to_thread(namespace_deletion, pair.installation, "most", 90.0)
        assert "not within" not in deletion


# ---- the removal


def test_helm_deletes_the_api_service_first_and_a_waiting_namespace_ends() -> None:
    """The pods of queuectl are simulated, so no replica ever answers."""
    nodes = NodeSpec(racks_per_block=1, hosts_per_rack=2)
    shape = ClusterSpec(nodes=(nodes,), fsync=False, operators=())
    with LocalCluster.start(shape, progress=LineProgress()) as cluster:
        environment = tools(cluster)
        path = f"{helm_program().parent}:{environment['PATH']}"
        client = cluster.client
        with shell(environment | {"PATH": path}) as typing:
            page = Page("kubectl.md", typing)

            def run(line: str) -> None:
                status, _ = typing.type(line)
                assert status == 0, typing.errors

            run(HELM)
            enable = page.take("helm upgrade")
            run(enable)
            waiting(client, "disabled")
            run(page.take("kubectl delete apiservice"))
            run(page.take("helm upgrade"))
            assert not client.exists(API_SERVICE)
            ended(client, "disabled")

            run(enable)
            waiting(client, "uninstalled")
            run("helm uninstall queuectl -n queuectl-system --debug")
            deleted = re.findall(r'Starting delete for "(\S+)" (\w+)', typing.errors)
            assert deleted[0] == ("v1.visibility.queuectl.dev", "APIService")
            assert ("queuectl-visibility", "Service") in deleted
            ended(client, "uninstalled")


def waiting(client: Client, name: str) -> None:
    """Delete a namespace, which waits for the aggregated API."""
    path = f"/api/v1/namespaces/{name}"
    client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    wait_until(lambda: "False" in availability(client), "no replica answers", 90.0)
    client.delete(path)

    def blocked() -> bool:
        conditions = client.get(path)["status"].get("conditions", ())
        states = {one["type"]: one["status"] for one in conditions}
        return states.get("NamespaceDeletionDiscoveryFailure") == "True"

    wait_until(blocked, f"{name} waits", 180.0)


def availability(client: Client) -> list[str]:
    conditions = client.get(API_SERVICE).get("status", {}).get("conditions", ())
    return [one["status"] for one in conditions if one["type"] == "Available"]


def ended(client: Client, name: str) -> None:
    wait_until(lambda: not client.exists(f"/api/v1/namespaces/{name}"), f"{name} ended", 180.0)
