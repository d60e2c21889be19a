"""Changes of queues, rules and workloads in the system tests, and waits for their effects."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import scenario as m
from queuectl.demo.recorder import PODS
from queuectl.demo.scenario import Document
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client
from tests.support.postgres import server_directory
from tests.support.trainjobs import trainjob
from tests.system.installation import Installation, Workspace

EVERY_KILL: Final = bool(os.environ.get("EVERY_KILL"))
"""Whether tests kill the controller at each of their moments: `make test-faults`."""


def restart_controller(workspace: Workspace) -> None:
    """Kill the controller with SIGKILL, and start a new process on the same database."""
    workspace.installation.controller.kill()
    workspace.installation.controller.restart()


def restart_in_test_faults(workspace: Workspace) -> None:
    """As :func:`restart_controller`, in `make test-faults` only: a start takes five seconds of CPU time."""
    if EVERY_KILL:
        restart_controller(workspace)


def run_command(workspace: Workspace, name: str, action: str) -> None:
    """Run ``queuectl hold`` or another command as alice; repeated until the controller answers."""

    def asked() -> bool:
        server = workspace.installation.controller.api
        command = [action, f"{workspace.namespace}/{name}", "--by", "alice", "--server", server]
        return CliRunner().invoke(app, command).exit_code == 0

    workspace.until(asked, f"{action} {name} is accepted")


def reason(workspace: Workspace, name: str) -> tuple[str, str]:
    """State and reason code of a workload."""
    found = workspace.workload(name)
    return str(found.get("state", "")), str(found.get("reason", {}).get("code", ""))


def until_reason(workspace: Workspace, name: str, state: str, code: str) -> dict[str, Any]:
    """Wait for the state and the reason, and until the recording has the pods that queuectl has seen."""
    workspace.until(lambda: reason(workspace, name) == (state, code), f"{name} {state} {code}")
    workspace.recorder.settle(PODS)
    return workspace.workload(name)


def until_refused(workspace: Workspace, name: str) -> str:
    """Wait until a plan has considered a gang and it still waits. Returns the code of its reason."""
    unconsidered = {"", "Queued", "PendingEvaluation"}
    workspace.until(
        lambda: reason(workspace, name)[1] not in unconsidered, f"a plan considers {name}"
    )
    state, code = reason(workspace, name)
    assert state == "Pending", f"{name} is {state}: {code}"
    return code


def until_empty(workspace: Workspace, name: str) -> None:
    """Wait until no pod of a gang is left but those that ended by themselves."""
    workspace.until(
        lambda: not [p for p in workspace.pods(name) if not p.terminal], f"{name} has no pod"
    )


def remove(workspace: Workspace, name: str) -> None:
    """Delete a job."""
    (path,) = (path for path in workspace.made if path.endswith(f"/{name}"))
    workspace.client.delete(path, propagationPolicy="Background")
    workspace.made.remove(path)


def stop_queue(workspace: Workspace, gpus: int, policy: str) -> None:
    """Set the stopPolicy of the queue of ``main``."""
    queue = m.cluster_queue(workspace.namespace, "gpu", {GPU: gpus, "cpu": "1M"})
    queue["spec"]["stopPolicy"] = policy
    apply(workspace, queue)


def apply(workspace: Workspace, *documents: Document) -> None:
    """Configure, once the controller answers."""
    workspace.installation.controller.wait_ready()
    workspace.rest.apply(documents)


@contextmanager
def configured(workspace: Workspace, **fields: Any) -> Iterator[None]:
    """A Configuration that holds for all queues, until the end."""
    document: Document = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
    }
    apply(workspace, document | fields)
    try:
        yield
    finally:
        apply(workspace, document)


@contextmanager
def without_node(installation: Installation, name: str) -> Iterator[None]:
    """Delete a node. At the end it is created again with its resources, because the next test needs the GPUs of all nodes."""
    client = installation.cluster.client
    node = client.get(f"/api/v1/nodes/{name}")
    installation.cluster.nodes.delete(name)
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
        installation.cluster.nodes.wait_ready([name])


def create_runtime(workspace: Workspace, runtime: Document) -> None:
    """Create a runtime of TrainJobs, so that a TrainJob can refer to it."""
    workspace.client.apply(runtime)
    until_known(workspace, runtime)


def until_known(workspace: Workspace, runtime: Document) -> None:
    """Wait until the webhooks of the trainer know a runtime."""
    probe = trainjob("probe", workspace.namespace, runtime["metadata"]["name"], queue=None)
    path = workspace.client.path_of(probe).rpartition("/")[0]

    def known() -> bool:
        try:
            workspace.client.create(path, probe, dryRun="All")
        except ApiServerError as error:
            if "must be created before" in str(error):
                return False
            raise
        return True

    workspace.until(known, "the trainer knows the runtime")


def finish(workspace: Workspace, pod: str) -> None:
    """Let a pod without a run time succeed."""
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod}"
    workspace.client.patch(path, {"metadata": {"annotations": {m.RUN_SECONDS: "0"}}})


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
def cohort(
    installation: Installation, teams: Mapping[str, int], **specs: Mapping[str, Any]
) -> Iterator[Workspace]:
    """A workspace with a LocalQueue for each team and its ClusterQueue of so many GPUs, all in one cohort.

    A team's gangs evict borrowers at once. ``specs``: further fields of a team's ClusterQueue. No team may ever hold more than the cohort has.
    """
    with installation.workspace(0) as workspace:
        documents = []
        for team, gpus in teams.items():
            name = f"{workspace.namespace}-{team}"
            queue = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
            queue["spec"] |= {
                "cohortName": workspace.namespace,
                "preemption": {"reclaimWithinCohort": "Any"},
                "policy": {"reclaimPatienceSeconds": 0},
                **specs.get(team, {}),
            }
            documents += [queue, m.local_queue(workspace.namespace, team, name)]
            workspace.limits[workspace.namespace, team] = Resources({GPU: sum(teams.values())})
        apply(workspace, *documents)
        yield workspace


def kubectl(installation: Installation, *arguments: str) -> str:
    """The output of kubectl, run as cluster administrator."""
    program = installation.cluster.kubectl
    if program is None:
        pytest.skip("kubectl is not built; make controlplane builds it")
    command = [str(program), "--kubeconfig", str(installation.cluster.kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
