"""The webhook of queuectl on a local cluster, instead of the MutatingAdmissionPolicies."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from queuectl.cluster.apply import OF_PODS, apply, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.server import Server
from queuectl.cluster.writes import CONFIGURATION, NAME
from queuectl.control.certificate_keeper import from_data, to_data
from queuectl.control.certificates import SETTLED, Pair, issue
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.layout import LOOPBACK, free_ports
from tests.support.chart import BASE_VALUES, WEBHOOK, documents
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.system.installation import policies

Document = dict[str, Any]
PATH: Final = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
REPLICAS: Final = (f"{NAME}-0", f"{NAME}-1")
"""The pods of the webhook. Each has a Service of its name."""


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
def webhook(cluster: LocalCluster, job_kinds: Sequence[Document] = ()) -> Iterator[None]:
    """The admission of the chart with the replicas of the webhook, and with these declared kinds."""
    asyncio.run(_install(cluster, job_kinds))
    serve(cluster)
    in_force(cluster)
    yield


def serve(cluster: LocalCluster) -> None:
    """Start the replicas as processes, and let the API server call them instead of their Services."""
    ports = free_ports(len(REPLICAS))
    urls = {name: f"https://{LOOPBACK}:{port}" for name, port in zip(REPLICAS, ports, strict=True)}
    webhooks = cluster.client.get(PATH)["webhooks"]
    for one in webhooks:
        called = one["clientConfig"]
        service = called.pop("service")
        called["url"] = urls[service["name"]] + service["path"]
    cluster.client.patch(PATH, {"webhooks": webhooks})
    for name, url in urls.items():
        start_replica(cluster, name, url)


def start_replica(cluster: LocalCluster, name: str, url: str) -> None:
    """Start a replica as a process with the rights of its ServiceAccount, and wait until it listens."""
    account = cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, NAME)
    run = "from queuectl.cli.main import run; run()"
    address = url.removeprefix("https://")
    options = ["--listen", address, "--host", LOOPBACK, "--policies", str(_policies(cluster))]
    cluster.supervisor.start(
        name,
        [sys.executable, "-c", run, "webhook", *options],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(account)},
        cwd=cluster.kubeconfig.parent,
        log=cluster.log(name),
    )
    wait_until(lambda: _listens(url), f"{name} listens", 180.0)


def _policies(cluster: LocalCluster) -> Path:
    """The policies that the chart has written, as a file of the pods."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{NAME}"
    file = cluster.kubeconfig.parent / "policies.yaml"
    file.write_text(cluster.client.get(path)["data"]["policies.yaml"])
    return file


def _listens(url: str) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(_address(url)):
        return True
    return False


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def offer_successor(client: Client, hosts: Sequence[str]) -> Pair:
    """Give the webhook a certificate for these hosts, which it serves as soon as it reads it."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{NAME}"
    found = from_data(client.get(path)["data"])
    created = dt.datetime.now(dt.UTC) - 2 * SETTLED
    successor = issue(hosts, created)
    client.patch(path, {"data": to_data(replace(found, successor=successor))})
    return successor


def served_at(url: str) -> bytes:
    """The certificate that a server presents, as PEM."""
    return ssl.get_server_certificate(_address(url)).encode()


def url_of(cluster: LocalCluster, replica: str) -> str:
    """The URL that a replica prints."""
    lines = cluster.log(replica).read_text().splitlines()
    [url] = {line.removeprefix("Webhook ") for line in lines if line.startswith("Webhook ")}
    return url


async def _install(cluster: LocalCluster, job_kinds: Sequence[Document]) -> None:
    own = {"kueueKeys": {"enabled": True}, "jobKinds": list(job_kinds)}
    values = BASE_VALUES | WEBHOOK | own
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
    """Wait until new jobs are changed; ``kueue``: including those with Kueue's label."""

    async def wait() -> None:
        api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
        try:
            await wait_until_in_force(api, kueue=kueue)
        finally:
            await api.close()

    asyncio.run(wait())
