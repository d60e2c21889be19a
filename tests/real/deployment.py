"""queuectl as a Deployment: the database and the Secret that it needs, its pods, and its REST API."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.db.embedded import DATABASE, PORT, USER, EmbeddedServer
from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.scenario import Document
from queuectl.distribution import version
from queuectl.localcluster import LocalCluster
from tests.real import network
from tests.support.people import account, binding
from tests.support.postgres import server_directory

IMAGES: Final = Path(__file__).parents[2] / "build" / "image"
ARCHIVE: Final = IMAGES / f"queuectl-{version()}.tar"
SECONDS: Final = 120.0
EACH: Final = "all"
TRUST: Final = f"local {EACH} {EACH} trust\nhost {EACH} {EACH} 10.0.0.0/8 trust\n"
"""The database is in the network namespace of the run."""


@contextmanager
def database() -> Iterator[str]:
    """The URL of a Postgres server that pods reach."""
    with server_directory() as directory:
        rules = directory / "pg_hba.conf"
        rules.write_text(TRUST)
        rules.chmod(0o644)
        settings = {"listen_addresses": "127.0.0.1", "port": str(PORT), "hba_file": str(rules)}
        server = EmbeddedServer(directory / "server", durable=False, settings=settings)
        asyncio.run(server.start())
        try:
            yield f"postgresql://{USER}@{network.GATEWAY}:{PORT}/{DATABASE}"
        finally:
            asyncio.run(server.stop(immediate=True))


def secrets(url: str) -> list[Document]:
    """The Secret of the Deployment: the URL of the database. queuectl creates its certificate."""
    keys = ("migration-url", "url", "api-url")
    return [_secret("queuectl-database", "Opaque", dict.fromkeys(keys, url.encode()))]


def _secret(name: str, kind: str, data: dict[str, bytes]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "type": kind,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def controller_pods(cluster: LocalCluster) -> list[Document]:
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    listed: list[Document] = cluster.client.get(path)["items"]
    return listed


def is_ready(pod: Document) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def token_of_administrator(cluster: LocalCluster, namespace: str) -> str:
    """The token of a new ServiceAccount with all rights, in a new namespace."""
    admin = account(namespace, "admin")
    bound = binding(f"{namespace}-admin", "cluster-admin", admin)
    cluster.client.apply(*m.namespaces([namespace]), admin, bound)
    made = cluster.client.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/admin/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    return str(made["status"]["token"])


def rest_of(cluster: LocalCluster, address: str, token: str) -> ApiConnection:
    """The REST API of a pod."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/queuectl-ca"
    trusted = ssl.create_default_context(cadata=cluster.client.get(path)["data"]["ca.crt"])
    trusted.check_hostname = False  # the certificate has the name of the Service
    headers = {"authorization": f"Bearer {token}"}
    return ApiConnection(f"https://{address}:8443", verify=trusted, headers=headers)
