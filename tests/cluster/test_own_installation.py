"""The certificate of an installation and the check of its claim, on a real API server, with the rights of deploy/."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from queuectl.api.server import Certificate, WebServer
from queuectl.cluster.client import Api, Forbidden
from queuectl.cluster.connection import Connection
from queuectl.control.bundled_database import refuse_unmoved
from queuectl.control.certificate_keeper import CertificateKeeper, own_certificate
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.containment import Containment
from queuectl.domain.errors import StoreError
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane
from tests.support.postgres import running_postgres

pytestmark = pytest.mark.system

HOSTS: Final = f"queuectl.{SYSTEM_NAMESPACE}.svc,127.0.0.1"
CONFIG_MAP: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/queuectl-ca"


def files_in(folder: Path) -> Certificate:
    folder.mkdir()
    return Certificate(folder / "tls.crt", folder / "tls.key")


async def readable_by_all(control_plane: ControlPlane) -> str:
    """The certificate authority, as an account without rights reads it."""
    kubeconfig = control_plane.cluster.kubeconfig_for_service_account("default", "default")
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        return str(json.loads(await api.request("GET", CONFIG_MAP))["data"]["ca.crt"])
    finally:
        await api.close()


async def test_replicas_serve_one_certificate_that_clients_trust(
    control_plane: ControlPlane, own: Api, tmp_path: Path
) -> None:
    """They start at the same time, and one of them creates it."""
    async with AsyncExitStack() as stack:

        async def start(name: str) -> CertificateKeeper:
            return await stack.enter_async_context(
                own_certificate(
                    control_plane.kubeconfig,
                    SYSTEM_NAMESPACE,
                    "queuectl-tls",
                    "queuectl-ca",
                    HOSTS,
                    files_in(tmp_path / name),
                    Containment(time.time),
                )
            )

        first, second = await asyncio.gather(start("first"), start("second"))
        assert first.files.chain.read_bytes() == second.files.chain.read_bytes()
        trusted = ssl.create_default_context(cadata=await readable_by_all(control_plane))
        app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("ok"))])
        server = WebServer(
            app, ListenAddress("127.0.0.1", 0), Certificate(second.files.chain, second.files.key)
        )
        running = asyncio.create_task(server.run())
        async with httpx2.AsyncClient(verify=trusted, trust_env=False) as client:
            assert (await client.get(server.url)).text == "ok"
        running.cancel()
        await asyncio.wait({running})
    with pytest.raises(Forbidden):
        await own.request("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/queuectl-database")
    with pytest.raises(Forbidden):
        await own.request("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets")


async def test_an_empty_database_is_refused_while_the_claim_of_the_bundled_one_exists(
    control_plane: ControlPlane, admin: Api, tmp_path: Path
) -> None:
    """Under the identity of queuectl, by a real PostgreSQL."""
    claim = "data-queuectl-database-0"
    claims = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

    async with running_postgres() as postgres:
        url = postgres.server.url(await postgres.empty())

        async def check() -> None:
            await refuse_unmoved(url, SYSTEM_NAMESPACE, claim, control_plane.kubeconfig)

        await check()
        await admin.request("POST", claims, body={"metadata": {"name": claim}, "spec": spec})
        with pytest.raises(StoreError, match=claim):
            await check()
        await admin.request("DELETE", f"{claims}/{claim}")
