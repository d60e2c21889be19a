"""The client library is used without its generated code, and every kind of credentials works."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster import connection
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.library import load_incluster_config
from queuectl.domain.errors import BadInput
from tests.cluster.test_client import kubeconfig
from tests.support.tls import write_certificate

REAL_MONOTONIC = time.monotonic

ANSWER = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "secret"},
}


def after(code: str) -> str:
    """The output of a fresh interpreter that runs some lines."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_no_generated_model_and_no_generated_call_is_imported() -> None:
    loaded = after("import sys, queuectl.cluster.client; print(*sys.modules)").split()
    assert "kubernetes_asyncio.client.api_client" in loaded
    generated = ("kubernetes_asyncio.client.models.", "kubernetes_asyncio.client.api.")
    assert not [name for name in loaded if name.startswith(generated)]


def test_a_library_that_was_imported_before_is_kept() -> None:
    code = """
from kubernetes_asyncio import client
import queuectl.cluster.library as ours
print(ours.ApiClient is client.ApiClient, ours.Configuration is client.Configuration, client.V1Job.__name__)
"""
    assert after(code).split() == ["True", "True", "V1Job"]


def from_file(folder: Path) -> dict[str, Any]:
    path = folder / "token"
    path.write_text("secret\n")
    return {"tokenFile": str(path)}


def from_program(folder: Path) -> dict[str, Any]:
    program = f"print({json.dumps(json.dumps(ANSWER))})"
    return {
        "exec": {
            "apiVersion": ANSWER["apiVersion"],
            "command": sys.executable,
            "args": ["-c", program],
            "interactiveMode": "Never",
        }
    }


@pytest.mark.parametrize("user", [lambda _: {"token": "secret"}, from_file, from_program])
async def test_credentials_are_read_from_each_place_of_a_kubeconfig(
    tmp_path: Path, user: Callable[[Path], dict[str, Any]]
) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    application = web.Application()
    application.router.add_get("/version", answer)
    async with TestServer(application) as server:
        path = kubeconfig(tmp_path, server.port or 0)
        document = json.loads(path.read_text())
        document["users"][0]["user"] = user(tmp_path)
        path.write_text(json.dumps(document))
        api = await Api.connect(Connection(kubeconfig=path))
        await api.request("GET", "/version")
        await api.close()
    assert seen == ["Bearer secret"]


@pytest.mark.parametrize("where", ["kubeconfig", "service account"])
async def test_a_renewed_token_is_used_for_any_time_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    application = web.Application()
    application.router.add_get("/version", answer)
    token, certificate = tmp_path / "token", write_certificate(tmp_path, "api")
    token.write_text("old")
    server = TestServer(application)
    try:
        await server.start_server(ssl=certificate.context())
        path = None
        if where == "kubeconfig":
            authority = {"certificate-authority": str(certificate.chain)}
            address = {"server": f"https://127.0.0.1:{server.port}"}
            path = kubeconfig(tmp_path, cluster=address | authority)
            document = json.loads(path.read_text())
            document["users"][0]["user"] = {"tokenFile": str(token)}
            path.write_text(json.dumps(document))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        monkeypatch.setattr(
            connection,
            "load_incluster_config",
            partial(
                load_incluster_config,
                token_filename=str(token),
                cert_filename=str(certificate.chain),
            ),
        )
        api = await Api.connect(Connection(kubeconfig=path))
        await api.request("GET", "/version")
        token.write_text("new")
        monkeypatch.setattr(time, "monotonic", lambda: REAL_MONOTONIC() + 61.0)
        await api.request("GET", "/version")
        await api.close()
    finally:
        await server.close()
    assert seen == ["Bearer old", "Bearer new"]


async def test_a_pod_without_a_service_account_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(BadInput, match="service account of this pod"):
        await Api.connect(Connection())
