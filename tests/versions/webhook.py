"""The webhook of queuectl on a local cluster, instead of the MutatingAdmissionPolicies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from queuectl.cluster.apply import OF_PODS, apply, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.server import Server
from queuectl.cluster.webhooks import CONFIGURATION, NAME
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.layout import LOOPBACK, free_ports
from tests.support.chart import BASE_VALUES, WEBHOOK, documents
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.system.installation import policies

PATH: Final = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
REPLICAS: Final = ("webhook-1", "webhook-2")


def server_of(cluster: LocalCluster) -> Server:
    """The API server of a cluster."""
    found = cluster.client.get("/version")
    return Server((int(found["major"]), int(found["minor"])))


@contextmanager
def admission(cluster: LocalCluster) -> Iterator[None]:
    """The admission of deploy/ for the version of the cluster."""
    chosen = policies if server_of(cluster).has_mutating_policies else webhook
    with chosen(cluster):
        yield


@contextmanager
def webhook(cluster: LocalCluster) -> Iterator[None]:
    """The admission of the chart with two replicas of the webhook. The API server calls the first one."""
    asyncio.run(_install(cluster))
    serve(cluster)
    in_force(cluster)
    yield


def serve(cluster: LocalCluster) -> None:
    """Start the replicas as processes, and let the API server call the first one instead of the Service."""
    urls = [f"https://{LOOPBACK}:{port}" for port in free_ports(len(REPLICAS))]
    webhooks = cluster.client.get(PATH)["webhooks"]
    for one in webhooks:
        called = one["clientConfig"]
        called["url"] = urls[0] + called.pop("service")["path"]
    cluster.client.patch(PATH, {"webhooks": webhooks})
    account = cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, NAME)
    for name, url in zip(REPLICAS, urls, strict=True):
        run = "from queuectl.cli.main import run; run()"
        address = url.removeprefix("https://")
        cluster.supervisor.start(
            name,
            [sys.executable, "-c", run, "webhook", "--listen", address, "--host", LOOPBACK],
            env={"PATH": os.environ["PATH"], "KUBECONFIG": str(account)},
            cwd=cluster.kubeconfig.parent,
            log=cluster.log(name),
        )


def url_of(cluster: LocalCluster, replica: str) -> str:
    """The URL that a replica prints."""
    lines = cluster.log(replica).read_text().splitlines()
    [url] = {line.removeprefix("Webhook ") for line in lines if line.startswith("Webhook ")}
    return url


async def _install(cluster: LocalCluster) -> None:
    values = BASE_VALUES | WEBHOOK | {"kueueKeys": {"enabled": True}}
    chosen = [
        one for one in documents(values, str(server_of(cluster))) if one["kind"] not in OF_PODS
    ]
    chosen.sort(key=lambda one: str(one["kind"]) != "Namespace")
    api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
    try:
        await apply(api, chosen)
    finally:
        await api.close()


def in_force(cluster: LocalCluster, *, kueue: bool = True) -> None:
    """Wait until new jobs are changed; ``kueue``: also those with Kueue's label."""

    async def wait() -> None:
        api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
        try:
            await wait_until_in_force(api, kueue=kueue)
        finally:
            await api.close()

    asyncio.run(wait())
