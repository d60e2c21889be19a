"""Malformed and hostile requests: clear errors, nothing lost, and no answer that reveals more than it should."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import orjson
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from tests.api.conftest import AnyStore, talking_to
from tests.api.serving import running
from tests.api.signed import ADMIN, asking, bearer, people, signed_app
from tests.api.support import CLUSTER_QUEUE, COHORT, QUEUE_PATH, job
from tests.doubles.store import MemoryStore

COHORT_PATH = "/api/v1/cohorts/all"
SQL = [
    "'; DROP TABLE workloads; --",
    "1 OR 1=1",
    "%",
    "_",
    "\\",
    "a' UNION SELECT",
    "$1",
    ":name",
    "{}",
]


# ---- names


@pytest.mark.parametrize("name", SQL)
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/clusterqueues/{}",
        "/api/v1/namespaces/{}/localqueues/default",
        "/api/v1/workloads/{}",
        "/api/v1/namespaces/team-a/workloads/{}/explain",
        "/api/v1/workloads?namespace={}",
        "/api/v1/workloads?queue={}",
        "/api/v1/workloads?cursor={}",
        "/api/v1/reports/usage?by=label:{}",
        "/api/v1/reports/usage?since={}",
    ],
)
async def test_a_name_that_resembles_sql_is_refused(
    client: httpx2.AsyncClient, path: str, name: str
) -> None:
    where, question, query = path.partition("?")
    key, _, value = query.partition("=")
    params = {key: value.format(name)} if question else None
    answer = await client.get(where.format(_quoted(name)), params=params)
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path", ["workloads?user=%00", "workloads?cursor=%00", "reports/jobs?cursor=AA=="]
)
async def test_a_name_with_the_character_that_no_text_can_hold_is_refused(
    client: httpx2.AsyncClient, path: str
) -> None:
    assert (await client.get(f"/api/v1/{path}")).status_code == 422


@pytest.mark.parametrize("name", SQL)
async def test_in_the_audit_log_sql_is_only_text(api: httpx2.AsyncClient, name: str) -> None:
    await api.put(COHORT_PATH, json=COHORT)
    for key in ("caller", "path"):
        answer = await api.get("/api/v1/audit", params={key: name})
        assert answer.json()["items"] == []


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02x}" for byte in name.encode())


# ---- paths

TRICKS = [
    "/api/v1/../v1/cohorts",
    "/api/v1/%2e%2e/v1/cohorts",
    "/api/v1//cohorts",
    "//api/v1/cohorts",
    "/api/v1/cohorts/",
    "/api/v1/cohorts/%2e%2e",
    "/api/v1/cohorts/a%2fb",
    "/api/v1/cohorts/%00",
    "/api/v1/cohorts/%ff%fe",
    "/api/v1/cohorts;x=1",
    "/API/V1/COHORTS",
    "/api/v1/cohorts\\all",
    "/healthz/../api/v1/cohorts",
    "/healthz/",
    "/api/v1/openapi.json/../cohorts",
    "/api/v1/namespaces/../clusterqueues",
]


@pytest.fixture
async def served(memory: MemoryStore) -> AsyncIterator[ListenAddress]:
    """On a real port: clients normalize paths before they send them."""
    server = WebServer(signed_app(memory, people()), ListenAddress("127.0.0.1", 0))
    async with running(server):
        yield server.address


async def said(address: ListenAddress, request: bytes) -> bytes:
    """The answer to raw bytes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read(1 << 20)
    writer.close()
    return answer


def request(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@pytest.mark.parametrize("path", TRICKS)
async def test_no_encoding_of_a_path_bypasses_authentication(
    served: ListenAddress, path: str
) -> None:
    answer = await said(served, request(path))
    assert answer.split()[1] in (b"401", b"400")
    known = await said(served, request(path, f"Authorization: Bearer {ADMIN}"))
    assert known.split()[1] in (b"404", b"422", b"400")


# ---- headers


@pytest.mark.parametrize(
    "headers",
    [
        ("X-Request-Id: a\nSet-Cookie: b=c",),
        ("X-Request-Id: a\r Set-Cookie: b=c",),
        ("X-Request-Id: a", "X-Request-Id: b\t\tc"),
        ("X-Request-Id: %0d%0aSet-Cookie:b=c",),
        ("Idempotency-Key: a\x0bb",),
        ("Host: a\x00b",),
        ("Content-Length: -1",),
        ("Content-Length: 1", "Content-Length: 2"),
        ("Transfer-Encoding: chunked, identity",),
        ("Authorization: Bearer " + "x" * 100_000,),
        tuple(f"X-{n}: {'y' * 1000}" for n in range(100)),
    ],
    ids=lambda headers: headers[0][:30],
)
async def test_no_header_injects_another_into_the_answer(
    served: ListenAddress, headers: tuple[str, ...]
) -> None:
    known = f"Authorization: Bearer {ADMIN}"
    answer = await said(served, request(COHORT_PATH, known, *headers, method="PUT"))
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert b"set-cookie" not in head
    assert b"500" not in head.split(b"\r\n")[0]
    again = await said(served, request("/api/v1/cohorts", known))
    assert again.split()[1] == b"200"


async def test_a_request_that_never_ends_does_not_block_others(served: ListenAddress) -> None:
    slow = [await asyncio.open_connection(served.host, served.port) for _ in range(50)]
    for _, writer in slow:
        writer.write(b"PUT /api/v1/cohorts/all HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n")
    known = f"Authorization: Bearer {ADMIN}"
    assert (await said(served, request("/api/v1/cohorts", known))).split()[1] == b"200"
    for _, writer in slow:
        writer.close()


async def test_a_connection_cut_in_the_middle_of_a_body_writes_nothing(
    served: ListenAddress, memory: MemoryStore
) -> None:
    body = orjson.dumps(COHORT)
    whole = request(
        COHORT_PATH,
        f"Authorization: Bearer {ADMIN}",
        "Content-Type: application/json",
        method="PUT",
        body=body,
    )
    with capture_logs() as logs:
        _, writer = await asyncio.open_connection(served.host, served.port)
        writer.write(whole[:-5])
        await writer.drain()
        writer.close()
        while not memory.database.audit or memory.database.audit[-1].status is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert memory.database.audit[-1].detail == "the connection ended before the answer"
    assert not memory.database.documents
    assert not [line for line in logs if line["log_level"] == "error"]


# ---- bodies

BAD = {
    "invalid UTF-8": b'{"kind": "\xff\xfe"}',
    "UTF-16": '{"kind": "Cohort"}'.encode("utf-16"),
    "an overlong form": b'{"kind": "\xc0\xaf"}',
    "half a surrogate": b'{"kind": "\\ud800"}',
    "NUL": b'{"kind": "a\x00"}',
    "NaN": b'{"kind": NaN}',
    "an endless number": b'{"kind": 1' + b"0" * 100_000 + b"}",
    "deep": b'{"a":' * 50_000,
    "two documents": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", COHORT_PATH),
        ("POST", "/api/v1/dryrun"),
        ("POST", "/api/v1/workloads/uid-1/priority"),
        ("POST", "/api/v1/session"),
    ],
)
async def test_a_malformed_body_is_refused_with_a_problem(
    client: httpx2.AsyncClient, memory: MemoryStore, method: str, path: str, body: bytes
) -> None:
    answer = await client.request(
        method, path, content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 404, 413, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    orjson.loads(
        answer.content
    )  # the answer itself is valid UTF-8, including quotes of the request
    assert not memory.database.documents


async def test_duplicate_keys_in_a_body_are_refused(client: httpx2.AsyncClient) -> None:
    body = b'{"kind": "Cohort", "metadata": {"name": "all"}, "metadata": {"name": "other"}, "apiVersion": "queuectl.dev/v1"}'
    answer = await client.put(COHORT_PATH, content=body)
    assert answer.status_code == 422


# ---- repeated and concurrent requests


async def test_exactly_one_of_many_concurrent_creations_succeeds(api: httpx2.AsyncClient) -> None:
    headers = {"If-None-Match": "*"}
    answers = await asyncio.gather(
        *(api.put(QUEUE_PATH, json=CLUSTER_QUEUE, headers=headers) for _ in range(20))
    )
    assert Counter(answer.status_code for answer in answers) == {201: 1, 412: 19}


async def test_concurrent_edits_lose_no_change(
    api: httpx2.AsyncClient,
) -> None:
    await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)

    async def add_one() -> None:
        while True:
            read = await api.get(QUEUE_PATH)
            document: dict[str, Any] = read.json()
            [group] = document["spec"]["resourceGroups"]
            [resource] = group["flavors"][0]["resources"]
            resource["nominalQuota"] = int(resource["nominalQuota"]) + 1
            matched = {"If-Match": read.headers["etag"]}
            written = await api.put(QUEUE_PATH, json=document, headers=matched)
            if written.status_code == 200:
                return
            assert written.status_code == 412

    await asyncio.gather(*(add_one() for _ in range(8)))
    [group] = (await api.get(QUEUE_PATH)).json()["spec"]["resourceGroups"]
    assert int(group["flavors"][0]["resources"][0]["nominalQuota"]) == 64 + 8
    lines = (await api.get("/api/v1/audit?limit=500")).json()["items"]
    assert sum(line["status"] == 200 for line in lines) == 8


async def test_a_write_that_is_sent_again_changes_nothing(api: httpx2.AsyncClient) -> None:
    first = await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    etags = {(await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)).headers["etag"] for _ in range(5)}
    assert etags == {first.headers["etag"]}


async def test_a_command_that_is_sent_again_immediately_is_one_command(
    ledger: AnyStore, api: httpx2.AsyncClient
) -> None:
    key = {"Idempotency-Key": "once"}
    path = f"/api/v1/workloads/{job('running').uid}/hold"
    answers = await asyncio.gather(*(api.post(path, headers=key) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(await ledger.commands()) == 1


# ---- answers


async def test_a_refusal_repeats_no_credentials(memory: MemoryStore) -> None:
    app: FastAPI = signed_app(memory, people())
    async with asking(app) as client:
        for headers in (bearer("secret-token"), {"Cookie": "__Host-queuectl=secret-token"}):
            answer = await client.get("/api/v1/cohorts", headers=headers)
            assert "secret-token" not in answer.text + str(answer.headers)
        answer = await client.post("/api/v1/session", json={"token": ["secret-token"]})
        assert answer.status_code == 422
        assert "secret-token" not in answer.text


async def test_markup_in_a_name_is_returned_as_text(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/api/v1/<script>alert(1)</script>")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with talking_to(app) as made:
        yield made
