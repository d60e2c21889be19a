"""What the server says becomes one of the domain's errors; configuration and credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queuectl.cluster.client import Api, Connection, Expired, Forbidden, failure
from queuectl.domain.errors import (
    BadInput,
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)


def status(code: int, **more: Any) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": "because", **more}).encode()


def causes(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"details": {"causes": [{"reason": r, "field": f} for r, f in pairs]}}


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (400, status(400), WriteRefused),
        (401, status(401), ClusterUnavailable),
        (403, status(403), Forbidden),
        (404, status(404), ObjectGone),
        (404, b"404 page not found\n", ObjectGone),
        (408, status(408), ClusterUnavailable),
        (409, status(409), WriteConflict),
        (410, status(410), Expired),
        (415, status(415), WriteRefused),
        (422, status(422), WriteRefused),
        (422, status(422, **causes(("FieldValueInvalid", "metadata.uid"))), ObjectGone),
        (422, status(422, **causes(("FieldValueInvalid", "spec.suspend"))), WriteRefused),
        (429, status(429), ClusterUnavailable),
        (500, b"", ClusterUnavailable),
        (502, b"<html>bad gateway</html>", ClusterUnavailable),
        (503, status(503), ClusterUnavailable),
        (504, status(504, **causes(("ResourceVersionTooLarge", ""))), Expired),
    ],
)
def test_each_status_means_one_thing(code: int, body: bytes, expected: type[ClusterError]) -> None:
    error = failure("PATCH /x", code, body)
    assert type(error) is expected
    assert str(error).startswith(f"PATCH /x: {code}: ")


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("7", {}, 7.0),
        ("", {"details": {"retryAfterSeconds": 3}}, 3.0),
        ("7", {"details": {"retryAfterSeconds": 3}}, 7.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("", {}, None),
    ],
)
def test_when_to_ask_again_is_the_servers_word(
    header: str, details: dict[str, Any], seconds: float | None
) -> None:
    error = failure("GET /x", 429, status(429, **details), header)
    assert isinstance(error, ClusterUnavailable)
    assert error.retry_after == seconds


def test_the_servers_sentence_is_kept() -> None:
    assert "because" in str(failure("GET /x", 422, status(422)))
    assert "bad gateway" in str(failure("GET /x", 502, b"bad gateway"))


async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        await Api.connect(Connection(kubeconfig=tmp_path / "nowhere"))


async def test_outside_of_a_pod_without_kubeconfig_there_is_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(BadInput, match="service account"):
        await Api.connect(Connection())


async def test_an_unanswered_port_is_unavailable(tmp_path: Path, unused_tcp_port: int) -> None:
    api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, unused_tcp_port)))
    with pytest.raises(ClusterUnavailable):
        await api.request("GET", "/version")
    with pytest.raises(ClusterUnavailable):
        async with api.stream("/api/v1/pods", ()):
            pass
    await api.close()


def kubeconfig(folder: Path, port: int) -> Path:
    """Of a plain HTTP server on loopback."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path
