"""The webhook of queuectl on a local cluster, instead of the MutatingAdmissionPolicies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from queuectl.cluster.apply import (
    apply,
    for_older_servers,
    manifests,
    optional,
    wait_until_in_force,
)
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.server import Server
from queuectl.cluster.webhooks import NAME
from queuectl.demo.controller import KUEUE_KEYS
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.layout import LOOPBACK, free_ports
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.system.installation import policies

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
    """The admission of deploy/ with two replicas of the webhook. The API server calls the first one."""
    urls = [f"https://{LOOPBACK}:{port}" for port in free_ports(len(REPLICAS))]
    asyncio.run(_install(cluster, urls[0]))
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
    asyncio.run(_in_force(cluster))
    yield


def url_of(cluster: LocalCluster, replica: str) -> str:
    """The URL that a replica prints."""
    lines = cluster.log(replica).read_text().splitlines()
    [url] = {line.removeprefix("Webhook ") for line in lines if line.startswith("Webhook ")}
    return url


async def _install(cluster: LocalCluster, url: str) -> None:
    documents = [*manifests(controller=False), *optional(KUEUE_KEYS)]
    api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
    try:
        await apply(api, for_older_servers(documents, {"url": url}))
    finally:
        await api.close()


async def _in_force(cluster: LocalCluster) -> None:
    api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
    try:
        await wait_until_in_force(api, kueue=True)
    finally:
        await api.close()
