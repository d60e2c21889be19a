"""Every error is an answer of type problem+json with a documented type."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from structlog.testing import capture_logs

from queuectl.api.body import MAX_BYTES
from queuectl.api.problems import ProblemType
from tests.api.conftest import talking_to
from tests.api.support import CLUSTER_QUEUE, QUEUE_PATH, FixedHealth, job
from tests.doubles.store import MemoryStore

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "problems.md"
YAML = {"content-type": "application/yaml"}
JSON = {"content-type": "application/json"}

Ask = Callable[[httpx2.AsyncClient], Awaitable[httpx2.Response]]


def asking(method: str, path: str, **extra: object) -> Ask:
    return lambda client: client.request(method, path, **extra)  # type: ignore[arg-type]  # a table


def putting(content: bytes, headers: dict[str, str]) -> Ask:
    return asking("PUT", QUEUE_PATH, content=content, headers=headers)


PROBLEMS: list[tuple[str, Ask, ProblemType]] = [
    ("not JSON", putting(b"{", JSON), ProblemType.MALFORMED_BODY),
    ("no mapping", putting(b"[]", JSON), ProblemType.MALFORMED_BODY),
    ("empty", putting(b"", JSON), ProblemType.MALFORMED_BODY),
    ("NUL inside", putting(b'{"kind": "a\\u0000"}', JSON), ProblemType.MALFORMED_BODY),
    ("JSON too deep", putting(b"[" * 5000, JSON), ProblemType.MALFORMED_BODY),
    ("not YAML", putting(b"a: [", YAML), ProblemType.MALFORMED_BODY),
    ("not UTF-8", putting(b"\xff\xfe\xff", YAML), ProblemType.MALFORMED_BODY),
    ("two documents", putting(b"a: 1\n---\nb: 2\n", YAML), ProblemType.MALFORMED_BODY),
    ("aliases", putting(b"a: &x [1]\nb: *x\n", YAML), ProblemType.MALFORMED_BODY),
    ("only YAML has it", putting(b"a: !!set {1}\n", YAML), ProblemType.MALFORMED_BODY),
    ("arbitrary objects", putting(b"a: !!python/none\n", YAML), ProblemType.MALFORMED_BODY),
    ("YAML too deep", putting(b"[" * 5000, YAML), ProblemType.MALFORMED_BODY),
    ("no object", asking("GET", QUEUE_PATH), ProblemType.NOT_FOUND),
    ("no object to delete", asking("DELETE", QUEUE_PATH), ProblemType.NOT_FOUND),
    ("no path", asking("GET", "/api/v2/clusterqueues"), ProblemType.NO_SUCH_PATH),
    ("no method", asking("POST", QUEUE_PATH), ProblemType.METHOD_NOT_ALLOWED),
    (
        "precondition",
        asking("PUT", QUEUE_PATH, json=CLUSTER_QUEUE, headers={"if-match": '"1"'}),
        ProblemType.PRECONDITION_FAILED,
    ),
    ("too large", putting(b" " * (MAX_BYTES + 1), JSON), ProblemType.BODY_TOO_LARGE),
    (
        "neither JSON nor YAML",
        putting(b"<a/>", {"content-type": "text/xml"}),
        ProblemType.UNSUPPORTED_MEDIA_TYPE,
    ),
    (
        "a host name that is not configured",
        asking("GET", QUEUE_PATH, headers={"host": "rebound.example:8000"}),
        ProblemType.MISDIRECTED,
    ),
    ("wrong document", putting(b"{}", JSON), ProblemType.INVALID_DOCUMENT),
    ("wrong name", asking("GET", "/api/v1/cohorts/No"), ProblemType.INVALID_PARAMETER),
    ("wrong parameter", asking("GET", "/api/v1/workloads?limit=x"), ProblemType.INVALID_PARAMETER),
]


def check(answer: httpx2.Response, kind: ProblemType) -> None:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (body["type"], body["status"], body["title"]) == (kind.uri, kind.status, kind.title)
    assert answer.status_code == kind.status
    assert body["detail"]
    assert body["instance"] == answer.request.url.path


@pytest.mark.parametrize(("ask", "kind"), [p[1:] for p in PROBLEMS], ids=[p[0] for p in PROBLEMS])
async def test_an_error_is_a_problem(
    client: httpx2.AsyncClient, ask: Ask, kind: ProblemType
) -> None:
    check(await ask(client), kind)


async def test_each_route_refuses_an_unknown_parameter_before_it_acts(
    app: FastAPI, client: httpx2.AsyncClient
) -> None:
    await client.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    before = await client.get(QUEUE_PATH)
    routes = [r for r in app.routes if isinstance(r, APIRoute) and r.path.startswith("/api/v1/")]
    assert len(routes) > 100
    for route in routes:
        path = re.sub(r"{[^}]+}", "team-a", route.path)
        for method in route.methods or ():
            answer = await client.request(method, path, params={"dryRun": "All"})
            check(answer, ProblemType.INVALID_PARAMETER)
            assert [error["field"] for error in answer.json()["errors"]] == ["dryRun"], path
    assert (await client.get(QUEUE_PATH)).headers["etag"] == before.headers["etag"]


@pytest.mark.parametrize(
    ("method", "address", "detail"),
    [
        ("DELETE", f"{QUEUE_PATH}?dry-run=true", "a query parameter is not one of those of this request (dry_run)"),
        ("POST", "/api/v1/session?a=1", "a query parameter is not one of those of this request (none)"),
        (
            "GET",
            "/api/v1/reports/efficiency?for=queue",
            "a query parameter is not one of those of this request (by)",
        ),
    ],
)  # fmt: skip
async def test_the_refusal_of_an_unknown_parameter_names_those_of_the_request(
    client: httpx2.AsyncClient, method: str, address: str, detail: str
) -> None:
    assert (await client.request(method, address)).json()["detail"] == detail


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/api/v1/cohorts?limit=5&cursor=a&before=9&after=3", 200),
        ("/api/v1/search?q=a&cursor=a", 200),
        ("/api/v1/workloads?limit=5", 200),
        ("/api/v1/workloads?after=5", 422),
        ("/api/v1/decisions?cursor=a", 422),
        ("/api/v1/subscriptions?after=0&limit=5", 200),
    ],
)
async def test_only_a_list_that_comes_as_a_whole_ignores_the_parameters_of_pages(
    client: httpx2.AsyncClient, address: str, status: int
) -> None:
    assert (await client.get(address)).status_code == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_and_scrapers_can_add_parameters(
    client: httpx2.AsyncClient, path: str
) -> None:
    assert (await client.get(path, params={"verbose": ""})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", QUEUE_PATH),
        ("PUT", QUEUE_PATH),
        ("DELETE", QUEUE_PATH),
        ("GET", "/api/v1/clusterqueues"),
        ("GET", "/api/v1/workloads"),
        ("GET", "/api/v1/workloads/uid-1"),
        ("GET", "/api/v1/namespaces/a/workloads/b/explain"),
    ],
)
async def test_without_the_database_every_path_reports_that_it_is_unavailable(
    client: httpx2.AsyncClient, memory: MemoryStore, method: str, path: str
) -> None:
    memory.database.down = True
    body = CLUSTER_QUEUE if method == "PUT" else None
    answer = await client.request(method, path, json=body)
    check(answer, ProblemType.STORE_UNAVAILABLE)
    assert int(answer.headers["retry-after"]) > 0


async def test_a_defect_is_reported_without_its_details_and_logged_with_them(
    app: FastAPI, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(memory, "get_workload", broken)
    with capture_logs() as logs:
        async with talking_to(app) as client:
            answer = await client.get(f"/api/v1/workloads/{job('a').uid}")
    check(answer, ProblemType.INTERNAL)
    assert "secret" not in answer.text
    assert [str(line["exc_info"]) for line in logs] == ["secret"]


async def test_allow_names_all_methods_of_a_path(client: httpx2.AsyncClient) -> None:
    answer = await client.post(QUEUE_PATH)
    assert answer.headers["allow"] == "DELETE, GET, PATCH, PUT"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "127.8.9.1"])
async def test_every_name_of_this_machine_is_answered(
    client: httpx2.AsyncClient, host: str
) -> None:
    assert (await client.get("/api/v1/cohorts", headers={"host": host})).status_code == 200


async def test_health_problems_name_their_blockers(
    client: httpx2.AsyncClient, health: FixedHealth
) -> None:
    health.blockers = ["watch: pods not listed yet"]
    check(await client.get("/readyz"), ProblemType.NOT_READY)
    health.faults = ["loop: stuck"]
    check(await client.get("/healthz"), ProblemType.NOT_LIVE)


def test_the_documentation_explains_each_problem_type_and_no_other() -> None:
    documented = re.findall(r"^## (.+)$", DOCS.read_text(), re.MULTILINE)
    assert documented == [kind.slug for kind in ProblemType]


def test_the_documentation_states_each_status() -> None:
    sections = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:]
    stated = {text.split("\n")[0]: int(text.split("\n\n")[1][:3]) for text in sections}
    assert stated == {kind.slug: kind.status for kind in ProblemType}
