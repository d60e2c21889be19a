"""A declared kind with the webhook instead of the MutatingAdmissionPolicies, as on Kubernetes 1.33 to 1.35."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.cluster.writes import POLICY
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import ApiServerError, LocalCluster, NodeSpec
from queuectl.objects import keys
from tests.support.gangruns import (
    JOB_KINDS,
    KINDS_FILE,
    OWN_KINDS,
    define,
    gangrun,
    simulated_controller,
    until_gated,
)
from tests.support.shared_resource import SharedResource, shared_resource
from tests.system.actions import finish, remove, until_empty
from tests.system.installation import Installation, Workspace, installed
from tests.versions.test_webhook import killed
from tests.versions.webhook import REPLICAS, webhook

__all__ = ["shared_resource"]

pytestmark = pytest.mark.system

NODES = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=4)


@contextmanager
def _admission(cluster: LocalCluster) -> Iterator[None]:
    define(cluster.client)
    with webhook(cluster, JOB_KINDS):
        until_gated(cluster.client)
        with simulated_controller(cluster):
            yield


@contextmanager
def _installed() -> Iterator[Installation]:
    settings = {"QUEUECTL_KINDS_FILE": str(KINDS_FILE)}
    with installed(NODES, settings, _admission, OWN_KINDS) as made:
        yield made


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """4 nodes of 8 GPUs."""
    return shared_resource.get(_installed)


def runs(workspace: Workspace, name: str, workers: int) -> None:
    workspace.until_state(name, "Running")
    workspace.until_running(name, workers, lambda _: True, f"{workers} pods of {name} run")


def test_the_webhook_suspends_and_gates_a_gang_which_runs_and_ends(
    installation: Installation,
) -> None:
    policies = installation.cluster.client.get(
        f"/apis/admissionregistration.k8s.io/v1/{POLICY.lower().replace('policy', 'policies')}"
    )
    assert policies["items"] == [], "the webhook alone changes new jobs"
    kind = OWN_KINDS["GangRun"]
    template = PodSetManifest(4, gpus=8).template("main", None, restart="Never")
    with installation.workspace(32, strategy="StrictFIFO") as workspace:

        def submit(name: str, priority: str) -> None:
            labels = {"queue_name": "main", "priority_class": priority}
            made = workspace.submit(gangrun(name, workspace.namespace, template, 4, **labels))
            assert kind.is_suspended(made)
            assert all(keys.GATE in str(one) for one in kind.templates(made))
            assert made["metadata"]["annotations"][keys.SUBMITTED_BY]

        submit("gang", "low")
        runs(workspace, "gang", 4)
        submit("urgent", "high")
        workspace.until_state("urgent", "Running")
        until_empty(workspace, "gang")
        remove(workspace, "urgent")
        runs(workspace, "gang", 4)
        for pod in workspace.running("gang"):
            finish(workspace, pod.name)
        done = workspace.until_state("gang", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Succeeded", 2)


def test_without_a_replica_a_new_gang_in_a_queue_is_refused(installation: Installation) -> None:
    template = PodSetManifest(1, gpus=8).template("main", None, restart="Never")
    client = installation.cluster.client
    plain = gangrun("plain", "default", template, 1)
    queued = gangrun("queued", "default", template, 1, queue_name="main")
    path = client.path_of(plain).rsplit("/", 1)[0]
    with killed(installation.cluster, *REPLICAS):
        client.create(path, plain, dryRun="All")
        with pytest.raises(ApiServerError, match="failed calling webhook"):
            client.create(path, queued, dryRun="All")
