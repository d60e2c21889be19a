"""Changes of queues, rules and workloads in the system tests, and waits for their effects."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster.client import Client
from tests.support.postgres import server_directory
from tests.system.house import House, Room


def die(room: Room) -> None:
    """Kill the controller with SIGKILL, and start a new process on the same database."""
    room.house.controller.kill()
    room.house.controller.restart()


def ask(room: Room, name: str, action: str) -> None:
    """Run ``queuectl hold`` or another command as alice; repeated until the controller answers."""

    def asked() -> bool:
        server = room.house.controller.api
        command = [action, f"{room.namespace}/{name}", "--by", "alice", "--server", server]
        return CliRunner().invoke(app, command).exit_code == 0

    room.until(asked, f"{action} {name} is accepted")


def reason(room: Room, name: str) -> tuple[str, str]:
    """State and reason code of a workload."""
    found = room.workload(name)
    return str(found.get("state", "")), str(found.get("reason", {}).get("code", ""))


def until_reason(room: Room, name: str, state: str, code: str) -> dict[str, Any]:
    room.until(lambda: reason(room, name) == (state, code), f"{name} {state} {code}")
    return room.workload(name)


def until_empty(room: Room, name: str) -> None:
    """Wait until no pod of a gang is left but those that ended by themselves."""
    room.until(lambda: not [p for p in room.pods(name) if not p.terminal], f"{name} has no pod")


def remove(room: Room, name: str) -> None:
    """Delete a job."""
    (path,) = (path for path in room.made if path.endswith(f"/{name}"))
    room.client.delete(path, propagationPolicy="Background")
    room.made.remove(path)


def stop_queue(room: Room, gpus: int, policy: str) -> None:
    """Set the stopPolicy of the queue of ``main``."""
    queue = m.cluster_queue(room.namespace, "gpu", {GPU: gpus, "cpu": "1M"})
    queue["spec"]["stopPolicy"] = policy
    put(room, queue)


def put(room: Room, *documents: Document) -> None:
    """Configure, once the controller answers."""
    room.house.controller.wait_ready()
    room.rest.apply(documents)


@contextmanager
def rules(room: Room, **fields: Any) -> Iterator[None]:
    """A Configuration that holds for all queues, until the end."""
    document: Document = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
    }
    put(room, document | fields)
    try:
        yield
    finally:
        put(room, document)


@contextmanager
def without_node(home: House, name: str) -> Iterator[None]:
    """Delete a node. At the end it is created again with its resources, because the next test needs the GPUs of all nodes."""
    client = home.cluster.client
    node = client.get(f"/api/v1/nodes/{name}")
    home.cluster.nodes.delete(name)
    try:
        yield
    finally:
        for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            node["metadata"].pop(key, None)
        has = {key: node["status"][key] for key in ("capacity", "allocatable")}
        kind = {"apiVersion": "v1", "kind": "Node"}
        client.create(
            "/api/v1/nodes", {**kind, "metadata": node["metadata"], "spec": {}, "status": has}
        )
        home.cluster.nodes.wait_ready([name])


def finish(room: Room, pod: str) -> None:
    """Let a pod without a run time succeed."""
    path = f"/api/v1/namespaces/{room.namespace}/pods/{pod}"
    room.client.patch(path, {"metadata": {"annotations": {m.RUN_SECONDS: "0"}}})


def collect(client: Client, namespace: str, pod: str) -> None:
    """Delete a pod as the pod garbage collector does, which waits most of a minute after the deletion of a node."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    why = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    client.patch(f"{path}/status", {"status": {"phase": "Failed", "conditions": [why]}})
    client.delete(path, missing_ok=True, gracePeriodSeconds=0)


@contextmanager
def outside_database() -> Iterator[EmbeddedServer]:
    """A Postgres server outside the controllers, so that it can be stopped while they run."""
    with server_directory() as directory:
        server = EmbeddedServer(directory, durable=False)
        asyncio.run(server.start())
        try:
            yield server
        finally:
            asyncio.run(server.stop(immediate=True))


@contextmanager
def cohort(home: House, teams: Mapping[str, int], **specs: Mapping[str, Any]) -> Iterator[Room]:
    """A room with a LocalQueue for each team and its ClusterQueue of so many GPUs, all in one cohort.

    A team's gangs evict borrowers at once. ``specs``: further fields of a team's ClusterQueue. No team may ever hold more than the cohort has.
    """
    with home.room(0) as room:
        documents = []
        for team, gpus in teams.items():
            name = f"{room.namespace}-{team}"
            queue = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
            queue["spec"] |= {
                "cohortName": room.namespace,
                "preemption": {"reclaimWithinCohort": "Any"},
                "policy": {"reclaimWaitSeconds": 0},
                **specs.get(team, {}),
            }
            documents += [queue, m.local_queue(room.namespace, team, name)]
            room.limits[room.namespace, team] = Resources({GPU: sum(teams.values())})
        put(room, *documents)
        yield room


def kubectl(home: House, *arguments: str, given: str | None = None) -> str:
    """The output of kubectl, run as cluster administrator; ``given`` is its standard input."""
    program = home.cluster.kubectl
    if program is None:
        pytest.skip("there is no kubectl beside the API server's programs")
    command = [str(program), "--kubeconfig", str(home.cluster.kubeconfig), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
