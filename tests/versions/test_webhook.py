"""The webhook on a real API server before Kubernetes 1.36: fail-closed, several replicas, renewed certificates, and few rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from queuectl.control.certificate_keeper import EVERY_SECONDS, from_data
from queuectl.localcluster import ApiServerError, LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.layout import LOOPBACK
from queuectl.objects import keys
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.support.jobs import batch_job, job_of
from tests.system.installation import Installation
from tests.system.test_default_queue import default_queue
from tests.versions.submissions import submitting
from tests.versions.test_mutation import PATHS
from tests.versions.webhook import (
    PATH,
    REPLICAS,
    offer_successor,
    served_at,
    server_of,
    start_replica,
    url_of,
)

pytestmark = pytest.mark.system

IGNORED = (
    'apiserver_admission_webhook_fail_open_count{name="queuectl-jobs-0.queuectl.dev",type="admit"}'
)
"""The metric of the API server with the failures that it has ignored."""
SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/queuectl-webhook"


@pytest.fixture(scope="module")
def older(installation: Installation) -> Installation:
    if server_of(installation.cluster).has_mutating_policies:
        pytest.skip("this version has MutatingAdmissionPolicy v1")
    return installation


@pytest.fixture
def namespace(older: Installation) -> Iterator[str]:
    with older.cluster.namespace("webhook") as name:
        yield name


LABELS: Final[Mapping[str, Mapping[str, str]]] = {
    "no queue": {},
    "a queue": {keys.QUEUE_LABEL: "main"},
    "a queue by Kueue's label": {f"{keys.KUEUE_PREFIX}{keys.QUEUE_NAME}": "main"},
}
NEW_JOBS: Final = {(kind, labels) for kind in PATHS for labels in LABELS}


def refusal(
    client: Client, namespace: str, kind: str = "Job", labels: str = "a queue"
) -> str | None:
    """The reason why a new job is refused, None if it is accepted; a dry run."""
    document = job_of(kind, "new", pods=1, namespace=namespace, queue=None)
    document["metadata"]["labels"] = dict(LABELS[labels])
    try:
        client.create(PATHS[kind].format(namespace), document, dryRun="All")
    except ApiServerError as error:
        return str(error)
    return None


def not_called(client: Client, namespace: str) -> set[tuple[str, str]]:
    """The kinds of new jobs that are refused because no webhook answers."""
    called = {one: str(refusal(client, namespace, *one)) for one in NEW_JOBS}
    return {one for one, why in called.items() if "failed calling webhook" in why}


@contextmanager
def killed(cluster: LocalCluster, *replicas: str) -> Iterator[None]:
    """These replicas do not run."""
    urls = {name: url_of(cluster, name) for name in replicas}
    for name in replicas:
        cluster.kill(name)
    try:
        yield
    finally:
        for name, url in urls.items():
            start_replica(cluster, name, url)


@pytest.fixture
def default_queue_namespace(older: Installation) -> Iterator[str]:
    """A namespace that takes in jobs without a queue label."""
    with older.workspace(0) as workspace:
        default_queue(workspace)
        yield workspace.namespace


def test_without_a_replica_new_jobs_in_queues_are_refused_and_others_are_accepted(
    older: Installation, namespace: str, default_queue_namespace: str
) -> None:
    client = older.cluster.client
    with killed(older.cluster, *REPLICAS):
        in_queues = {one for one in NEW_JOBS if one[1] != "no queue"}
        assert not_called(client, namespace) == in_queues
        assert not_called(client, default_queue_namespace) == NEW_JOBS
    assert not not_called(client, namespace) | not_called(client, default_queue_namespace)


@pytest.mark.parametrize("replica", REPLICAS)
def test_a_killed_replica_refuses_no_job(
    older: Installation, namespace: str, default_queue_namespace: str, replica: str
) -> None:
    client = older.cluster.client
    with submitting(lambda: refusal(client, namespace)) as found, killed(older.cluster, replica):
        assert not not_called(client, namespace)
        assert not not_called(client, default_queue_namespace)
    assert found.refused == []


def test_a_job_waits_for_one_replica_that_hangs_and_is_refused_if_both_do(
    older: Installation, namespace: str
) -> None:
    cluster = older.cluster
    try:
        cluster.pause(REPLICAS[0])
        assert refusal(cluster.client, namespace) is None
        assert IGNORED in cluster.client.text("/metrics")
        cluster.pause(REPLICAS[1])
        assert "context deadline exceeded" in str(refusal(cluster.client, namespace))
        assert refusal(cluster.client, namespace, labels="no queue") is None
    finally:
        for name in REPLICAS:
            cluster.resume(name)
    assert refusal(cluster.client, namespace) is None


def test_without_the_first_replica_the_annotation_of_a_user_does_not_prevent_the_mutation(
    older: Installation, default_queue_namespace: str
) -> None:
    client = older.cluster.client_for_user("alice", ["engineers"])
    document = batch_job("new", namespace=default_queue_namespace, queue=None)
    document["metadata"]["annotations"] = {keys.SUBMITTED_BY: "alice"}
    path = PATHS["Job"].format(default_queue_namespace)
    with killed(older.cluster, REPLICAS[0]):
        made = client.create(path, document, dryRun="All")
        assert made["spec"]["suspend"] is True
        assert made["metadata"]["labels"][keys.QUEUE_LABEL] == "default"
        document["metadata"]["labels"] = LABELS["a queue"]
        with pytest.raises(ApiServerError, match="must start suspended"):
            client.create(path, document, dryRun="All")
    client.close()


def test_a_renewed_certificate_refuses_no_job(older: Installation, namespace: str) -> None:
    client = older.cluster.client
    before = from_data(client.get(SECRET)["data"])
    with submitting(lambda: refusal(client, namespace)) as found:
        successor = offer_successor(client, [LOOPBACK])
        wait_until(
            lambda: served(older) == {successor.certificate},
            "the replicas serve the successor",
            2 * EVERY_SECONDS + 30,
        )
    after = from_data(client.get(SECRET)["data"])
    assert found.refused == []
    assert (after.served, after.successor) == (successor, None)
    assert before.served is not None
    assert before.served.certificate in after.trusted


def served(older: Installation) -> set[bytes]:
    """The certificates of the replicas."""
    return {served_at(url_of(older.cluster, name)) for name in REPLICAS}


def test_a_removed_ca_bundle_is_written_again(older: Installation, namespace: str) -> None:
    client = older.cluster.client
    webhooks = client.get(PATH)["webhooks"]
    for one in webhooks:
        del one["clientConfig"]["caBundle"]
    client.patch(PATH, {"webhooks": webhooks})
    wait_until(lambda: refusal(client, namespace) is not None, "no certificate is trusted", 30.0)
    wait_until(lambda: refusal(client, namespace) is None, "it is again", EVERY_SECONDS + 30)


# ---- the status of Jobs

CHANGES: Mapping[str, dict[str, Any]] = {
    "active": {"status": {"active": 1}},
    "a condition": {"status": {"conditions": [{"type": "example.com/other", "status": "True"}]}},
    "a start time": {"status": {"startTime": "2026-01-01T00:00:00Z"}},
    "a label": {"metadata": {"labels": {"a": "b"}}, "status": {"startTime": None}},
    "an annotation": {"metadata": {"annotations": {"a": "b"}}, "status": {"startTime": None}},
}


def test_queuectl_can_only_remove_the_start_time_of_a_suspended_job_in_a_queue(
    installation: Installation,
) -> None:
    cluster = installation.cluster
    account = "system:serviceaccount:queuectl-system:queuectl"
    groups = ["system:serviceaccounts", "system:serviceaccounts:queuectl-system"]
    own = cluster.client_for_user(account, groups)
    has_right = bool(server_of(cluster).needs)
    with cluster.namespace("status") as namespace:
        for name, queue in (("queued", "main"), ("free", None)):
            document = batch_job(name, namespace=namespace, queue=queue)
            document["spec"]["suspend"] = True
            cluster.client.create(PATHS["Job"].format(namespace), document)

        def refused(name: str, patch: Mapping[str, Any]) -> str | None:
            try:
                own.patch(f"{PATHS['Job'].format(namespace)}/{name}/status", dict(patch))
            except ApiServerError as error:
                return str(error)
            return None

        removed = {"status": {"startTime": None}}
        if has_right:
            assert refused("queued", removed) is None
            assert "nothing in the status of a job" in str(refused("free", removed))
            for change in CHANGES.values():
                assert "nothing in the status of a job" in str(refused("queued", change))
        else:
            assert "cannot patch resource" in str(refused("queued", removed))
    own.close()
