"""One cluster whose API server changes from 1.33 to 1.36 and back, with `mutation: auto`: what changes new jobs, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.review import Mutators, installed_mutators
from queuectl.localcluster import ApiServerError, LocalCluster, build
from queuectl.localcluster.components import API_SERVER
from queuectl.localcluster.versions import KUBERNETES, SUPPORTED, kubernetes
from queuectl.objects import keys
from tests.support.jobs import job_of
from tests.system.transcript import Page
from tests.versions.submissions import submitting
from tests.versions.test_older_kubernetes import prepared
from tests.versions.webhook import REPLICAS, in_force, serve

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

OLD: Final = SUPPORTED[0]
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
UPGRADE: Final = (
    "helm upgrade queuectl deploy/chart --namespace queuectl-system --values values.yaml"
)


def change(cluster: LocalCluster, release: str) -> None:
    """Replace the API server by one of another version, on the same state."""
    assets = build.existing(kubernetes(release))
    assert assets is not None
    commands = cluster._layout.description["commands"]
    cluster.kill(API_SERVER)
    commands[API_SERVER] = [str(assets.programs[API_SERVER]), *commands[API_SERVER][1:]]
    cluster.start_component(API_SERVER)


def mutators(cluster: LocalCluster) -> Mutators:
    async def read() -> Mutators:
        api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
        try:
            return await installed_mutators(api)
        finally:
            await api.close()

    return asyncio.run(read())


def refusal(cluster: LocalCluster) -> str | None:
    """The reason for which a new job in a queue is refused; None if it would be stored as queuectl needs it."""
    try:
        stored = cluster.client.create(JOBS, job_of("Job", "new", pods=1), dryRun="All")
    except ApiServerError as error:
        return str(error)
    assert stored["spec"]["suspend"] is True, "a job passes the queue"
    assert keys.GATE in str(stored["spec"]["template"]["spec"]["schedulingGates"])
    return None


@pytest.mark.skipif(
    any(build.existing(kubernetes(release)) is None for release in (OLD, KUBERNETES)),
    reason="both API servers must be built: run make test-versions",
)
def test_the_mutation_follows_the_cluster_from_the_webhook_to_the_policies_and_back() -> None:
    with prepared(OLD) as (cluster, typing):
        page = Page("older-kubernetes.md", typing)
        page.type("helm upgrade --install")
        serve(cluster)
        in_force(cluster, kueue=False)
        assert mutators(cluster) == Mutators(policies=False, webhook=True)

        change(cluster, KUBERNETES)
        in_force(cluster, kueue=False)
        assert mutators(cluster) == Mutators(policies=False, webhook=True)

        with submitting(lambda: refusal(cluster)) as jobs:
            page.type("helm upgrade queuectl")
        assert jobs.accepted
        print(f"{jobs.accepted} new jobs accepted during the change, {len(jobs.refused)} refused")
        for replica in REPLICAS:
            cluster.kill(replica)
        in_force(cluster, kueue=False)
        assert mutators(cluster) == Mutators(policies=True, webhook=False)

        change(cluster, OLD)
        assert mutators(cluster) == Mutators(policies=False, webhook=False)
        assert refusal(cluster) is not None
        status, _ = typing.type(UPGRADE)
        assert status
        assert 'no matches for kind "MutatingAdmissionPolicy"' in typing.errors
        page.type("kubectl -n queuectl-system delete secret -l")
        page.type("helm upgrade --install")
        serve(cluster)
        in_force(cluster, kueue=False)
        assert mutators(cluster) == Mutators(policies=False, webhook=True)
        assert refusal(cluster) is None

        change(cluster, KUBERNETES)
        assert mutators(cluster) == Mutators(policies=True, webhook=True)
        in_force(cluster, kueue=False)
        assert refusal(cluster) is None
        status, printed = typing.type(UPGRADE)
        assert status == 0, f"{printed}{typing.errors}"
        assert mutators(cluster) == Mutators(policies=True, webhook=False)
