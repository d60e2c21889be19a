"""The webhook on a real API server before Kubernetes 1.36: fail-closed, several replicas, renewed certificates, and few rights."""

from __future__ import annotations

import base64
import datetime as dt
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from queuectl.localcluster import RequestError
from queuectl.localcluster.client import Client, wait_until
from queuectl.webhook.certificates import issue
from queuectl.webhook.keeper import EVERY_SECONDS, from_data
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.support.jobs import batch_job
from tests.system.installation import Installation
from tests.system.test_default_queue import default_queue
from tests.versions.webhook import PATH, REPLICAS, server_of, url_of

pytestmark = pytest.mark.system

SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/queuectl-webhook"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"


@pytest.fixture(scope="module")
def older(installation: Installation) -> Installation:
    if server_of(installation.cluster).has_mutating_policies:
        pytest.skip("this version has MutatingAdmissionPolicy v1")
    return installation


@pytest.fixture
def namespace(older: Installation) -> Iterator[str]:
    with older.cluster.namespace("webhook") as name:
        yield name


def refusal(client: Client, namespace: str, queue: str | None = "main") -> str | None:
    """The reason why a job is refused, None if it is accepted; a dry run."""
    document = batch_job("new", namespace=namespace, queue=queue)
    try:
        client.create(JOBS.format(namespace), document, dryRun="All")
    except RequestError as error:
        return str(error)
    return None


def test_without_a_replica_jobs_in_queues_are_refused_and_others_are_accepted(
    older: Installation, namespace: str
) -> None:
    client = older.cluster.client
    first, second = (url_of(older.cluster, name) for name in REPLICAS)
    with older.workspace(0) as workspace:
        default_queue(workspace)
        other = workspace.namespace
        older.cluster.kill(REPLICAS[0])
        for refused in (refusal(client, namespace), refusal(client, other, None)):
            assert "failed calling webhook" in str(refused)
        assert refusal(client, namespace, None) is None

        move(client, first, second)
        wait_until(lambda: refusal(client, namespace) is None, "the other replica answers", 30.0)
        assert refusal(client, other, None) is None


def move(client: Client, before: str, after: str) -> None:
    """Let the API server call another replica, as a Service does."""
    webhooks = client.get(PATH)["webhooks"]
    for one in webhooks:
        config = one["clientConfig"]
        config["url"] = config["url"].replace(before, after)
    client.patch(PATH, {"webhooks": webhooks})


def test_a_renewed_certificate_refuses_no_job(older: Installation, namespace: str) -> None:
    client = older.cluster.client
    found = from_data(client.get(SECRET)["data"])
    assert found.served is not None
    now = dt.datetime.now(dt.UTC)
    successor = issue(["queuectl-webhook.queuectl-system.svc", "127.0.0.1"], now - dt.timedelta(1))
    data = {"next.crt": successor.certificate, "next.key": successor.key}
    client.patch(SECRET, {"data": {k: base64.b64encode(v).decode() for k, v in data.items()}})
    refused = []
    end = time.monotonic() + 2 * EVERY_SECONDS + 30
    while time.monotonic() < end and served(older) != {successor.certificate.decode()}:
        refused += [why for why in [refusal(client, namespace)] if why is not None]
    kept = from_data(client.get(SECRET)["data"])
    assert refused == []
    assert served(older) == {successor.certificate.decode()}
    assert (kept.served, kept.successor) == (successor, None)
    assert found.served.certificate in kept.trusted


def served(older: Installation) -> set[str]:
    """The certificates of the replicas that run."""
    running = older.cluster.pids()
    urls = [urlsplit(url_of(older.cluster, name)) for name in REPLICAS if name in running]
    return {ssl.get_server_certificate((str(url.hostname), int(url.port or 0))) for url in urls}


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
    "a condition": {"status": {"conditions": [{"type": "Failed", "status": "True"}]}},
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
            cluster.client.create(JOBS.format(namespace), document)

        def refused(name: str, patch: Mapping[str, Any]) -> str | None:
            try:
                own.patch(f"{JOBS.format(namespace)}/{name}/status", dict(patch))
            except RequestError as error:
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
