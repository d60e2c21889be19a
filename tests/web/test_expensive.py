"""Expensive requests to every route of the REST API and the dashboard: nothing is read before rights, all that is read is bounded.

The routes are taken from the application, so a new one is covered, or fails here until it declares what it takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx2
import orjson
import pytest
import yaml
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route

from queuectl.api import documents, reading
from queuectl.api.access import MOST_REVIEWS
from queuectl.api.auth.authentication import PROOF, OpenPaths
from queuectl.api.body import MAX_BYTES, MAX_FORM_BYTES, MAX_LIST_BYTES, MAX_SMALL
from queuectl.api.reading import MAX_DEPTH, MAX_VALUES
from queuectl.api.routes import dryrun
from queuectl.domain.identity import Right
from queuectl.web import configuration
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from queuectl.web.log_streams import PodLogs
from queuectl.web.pages import config_write
from tests.api.conftest import commit
from tests.api.signed import ADMIN, NO_RIGHTS, asking, signed_app
from tests.api.support import CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.pod_logs import MemoryPodLogs
from tests.web.sample import make

JSON, YAML = "application/json", "application/yaml"
FORM = "application/x-www-form-urlencoded"
PATCH = "application/merge-patch+json"
TENANT = "of-the-tenant"
VALUES = {
    "namespace": "team-a",
    "name": "made",
    "uid": "uid-job-made",
    "number": "1",
    "pod": "uid-pod",
}
WITHOUT_BODY = {
    "/ui/workloads/{uid}/pods/{pod}/logs",
    "/api/v1/receivers/{name}/test",
    "/ui/notifications/{number}",
}
"""Routes that read no body, whatever its size."""


def routes(among: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str, BaseRoute]]:
    """Method, path and route of each operation."""
    for route in among:
        if isinstance(route, Mount) and route.name == "static":
            continue
        if isinstance(route, Mount):
            yield from routes(route.routes, route.path)
            continue
        assert isinstance(route, Route), f"{route} is not covered by these tests"
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, prefix + route.path, route


SAMPLE = make()
ACCESS = MemoryAccess()
APP = signed_app(
    SAMPLE.store, ACCESS, open_paths=OpenPaths(OPEN, SIGN_IN), per_second=1e6, burst=10**6
)
add_dashboard(
    APP,
    SAMPLE.store,
    APP.state.guard,
    SAMPLE.cluster_reader,
    signs_in=True,
    pod_logs=PodLogs(MemoryPodLogs()),
)
ALL = sorted((method, path) for method, path, _ in routes(APP.routes))
WRITING = [
    (method, path)
    for method, path in ALL
    if method in ("POST", "PUT", "PATCH") and path != "/api/v1/session"
]


def media_of(method: str, path: str) -> str:
    if path.startswith("/ui/"):
        return FORM
    return PATCH if method == "PATCH" else JSON


def filled(path: str) -> str:
    plural = "localqueues" if "{namespace}" in path else "clusterqueues"
    made = path.format_map({**VALUES, "plural": plural})
    return made + ("?of=clusterqueues/made" if path == "/ui/config/check" else "")


@pytest.fixture
async def access() -> MemoryAccess:
    for known in (ACCESS.callers, ACCESS.granted, ACCESS.masters, ACCESS.asked):
        known.clear()
    ACCESS.know(ADMIN, "admin", master=True)
    ACCESS.know(NO_RIGHTS, "without-rights")
    # Everything that a team may do in its namespace, and nothing elsewhere.
    own = [
        Right(verb, resource, "team-b")
        for resource in ("workloads", "localqueues", "reports")
        for verb in ("get", "list", "watch", "update", "patch", "delete")
    ]
    ACCESS.know(TENANT, "tenant", *own)
    if "uid-job-made" not in SAMPLE.database.entries:
        await commit(SAMPLE.store, live_through(job("made")))
    return ACCESS


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The decoded bodies while the test runs: size in bytes and thread."""
    seen: list[tuple[int, str]] = []

    def recorded(of: Callable[..., Any]) -> Callable[..., Any]:
        def reads(body: Any, *more: Any) -> Any:
            seen.append((len(body), threading.current_thread().name))
            return of(body, *more)

        return reads

    monkeypatch.setattr(orjson, "loads", recorded(orjson.loads))
    monkeypatch.setattr(reading, "_load", recorded(reading._load))
    return seen


async def sent(
    token: str | None, method: str, path: str, body: bytes, media: str
) -> httpx2.Response:
    headers = {"Content-Type": media, PROOF: "1"}
    async with asking(APP, token) as client:
        return await client.request(method, filled(path), content=body, headers=headers)


BODIES: dict[str, bytes] = {
    "broken": b"{",
    "of the largest size": b'{"items": [' + b"1," * ((MAX_LIST_BYTES - 20) // 2) + b"1]}",
    "nested": b"[" * 100_000,
    "too large": b" " * (MAX_LIST_BYTES + 1),
}


def test_no_route_has_its_body_decoded_before_its_rights_are_checked() -> None:
    """FastAPI decodes what a route declares before any dependency of it runs."""
    declaring = [
        f"{method} {path}"
        for method, path, route in routes(APP.routes)
        if isinstance(route, APIRoute) and route.body_field is not None
    ]
    assert declaring == []


READ = {(TENANT, "/api/v1/dryrun")}
"""Documents that name themselves are read for a caller who may write one of them somewhere."""


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_nothing_is_read_for_a_caller_without_the_right(
    access: MemoryAccess, parsed: list[tuple[int, str]], body: bytes
) -> None:
    for method, path in WRITING:
        media = media_of(method, path)
        # A uid does not say whose it is.
        hidden = path.startswith(("/api/v1/workloads/{uid}", "/ui/workloads/{uid}"))
        refused = 404 if hidden else 403
        for token, expected in ((None, 401), (NO_RIGHTS, refused), (TENANT, refused)):
            if (token, path) not in READ:
                answer = await sent(token, method, path, body, media)
                assert answer.status_code == expected, f"{token} {method} {path}: {answer.text}"
                assert not parsed, f"{token} {method} {path}"


async def test_the_public_description_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/api/v1/openapi.json"
    async with asking(signed_app(SAMPLE.store, ACCESS)) as client:
        first = await client.get(path)
    app = signed_app(SAMPLE.store, ACCESS)
    monkeypatch.setattr(app, "openapi", None)
    monkeypatch.setattr(orjson, "dumps", None)
    async with asking(app) as client:
        assert (await client.get(path)).content == first.content
    assert first.json()["openapi"].startswith("3.1")


# ---- an entitled caller

DOCUMENT = {**COHORT, "metadata": {"name": "made"}}


def padded(document: dict[str, Any], size: int) -> bytes:
    """The same document, larger."""
    body = orjson.dumps(document)
    return body + b" " * (size - len(body))


async def test_what_is_large_is_read_alongside_the_event_loop(
    access: MemoryAccess, parsed: list[tuple[int, str]]
) -> None:
    here = threading.current_thread().name
    large = MAX_SMALL + 1
    text = f"kind: ClusterQueue\n#{'x' * large}"
    asked = [
        ("PUT", "/api/v1/cohorts/{name}", JSON, padded(DOCUMENT, large)),
        ("PUT", "/api/v1/cohorts/{name}", YAML, text.encode()),
        ("PUT", "/api/v1/cohorts/{name}", YAML, b"kind: Cohort"),
        ("PATCH", "/api/v1/cohorts/{name}", PATCH, padded({}, large)),
        ("POST", "/api/v1/dryrun", JSON, padded({"items": []}, MAX_LIST_BYTES)),
        ("POST", "/api/v1/dryrun", YAML, b"items: []\n#" + b"x" * large),
        ("POST", "/api/v1/plans", JSON, padded({}, MAX_LIST_BYTES)),
        ("POST", "/ui/config/check", FORM, urlencode({"text": text}).encode()),
    ]
    for method, path, media, body in asked:
        parsed.clear()
        headers = {"If-Match": "*"} if method == "PATCH" else {}
        async with asking(APP, ADMIN) as client:
            client.headers.update(headers)
            answer = await client.request(
                method, filled(path), content=body, headers={"Content-Type": media}
            )
        assert answer.status_code < 500 or "not-known-yet" in answer.text, answer.text
        assert parsed, f"{method} {path} {media}"
        assert here not in {thread for _, thread in parsed}, f"{method} {path} {media}"


def recorded(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> set[str]:
    """The threads in which a function is called while the test runs."""
    threads: set[str] = set()
    function = getattr(module, name)

    def called(*arguments: Any, **named: Any) -> Any:
        threads.add(threading.current_thread().name)
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, called)
    return threads


def queues(number: int, namespace: str = "team-vision") -> dict[str, Any]:
    """A list of LocalQueues; ``{}`` in the namespace stands for the number of each."""
    items = [
        {
            **LOCAL_QUEUE,
            "metadata": {"namespace": namespace.format(n), "name": f"queue-{n}"},
        }
        for n in range(number)
    ]
    return {"items": items}


async def test_a_large_dry_run_is_worked_out_alongside_the_event_loop(
    access: MemoryAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rights, and its answer, which is encoded object by object: no other thread runs while one call encodes."""
    threads = recorded(monkeypatch, dryrun, "_right"), recorded(monkeypatch, dryrun, "applied")
    body = orjson.dumps(queues(1000))
    answer = await sent(ADMIN, "POST", "/api/v1/dryrun", body, JSON)
    assert [one["result"] for one in answer.json()["objects"]] == ["created"] * 1000
    for seen in threads:
        assert seen
        assert threading.current_thread().name not in seen


async def test_a_large_document_is_checked_alongside_the_event_loop(
    access: MemoryAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = recorded(monkeypatch, documents, "validate")
    annotations = {f"key-{n}": "x" * 100 for n in range(MAX_SMALL // 100)}
    large = {**DOCUMENT, "metadata": {"name": "made", "annotations": annotations}}
    for method, media in (("PUT", JSON), ("PATCH", PATCH)):
        async with asking(APP, ADMIN) as client:
            await client.put("/api/v1/cohorts/made", json=DOCUMENT)
            threads.clear()
            headers = {"Content-Type": media, "If-Match": "*"}
            answer = await client.request(
                method, "/api/v1/cohorts/made", content=orjson.dumps(large), headers=headers
            )
        assert answer.status_code == 200, answer.text
        assert threads
        assert threading.current_thread().name not in threads


def large_queue(flavors: int = 64) -> dict[str, Any]:
    """The ClusterQueue ``made`` with up to as many quotas as a resource group can have."""
    resources = [f"example.com/resource-{n}" for n in range(8)]
    quotas = [{"name": name, "nominalQuota": "8"} for name in resources]
    of_flavors = [{"name": f"flavor-{n}", "resources": quotas} for n in range(flavors)]
    groups = [{"coveredResources": resources, "flavors": of_flavors}]
    spec = {**CLUSTER_QUEUE["spec"], "resourceGroups": groups}
    return {**CLUSTER_QUEUE, "metadata": {"name": "made"}, "spec": spec}


def large_text(flavors: int = 64) -> str:
    return orjson.dumps(large_queue(flavors), option=orjson.OPT_INDENT_2).decode()


async def test_a_page_writes_the_yaml_of_a_large_object_alongside_the_event_loop(
    access: MemoryAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, check = "/ui/config/clusterqueues/made", "/ui/config/check"
    part = "clusterqueues/made"
    old, new = large_text(), large_text(1)
    async with asking(APP, ADMIN) as client:
        stored = await client.put("/api/v1/clusterqueues/made", json=large_queue())
        version = stored.headers["etag"].strip('"')
        of = {"of": part, "version": version, "base": old, "text": new}
        changed = {**of, "version": "1", "base": new, "text": old}
        steps = {
            "the object": client.get(page),
            "a deletion": client.get("/ui/config/delete", params={"of": part}),
            "a check": client.post(check, params={"of": part}, data=of),
            "a check after another change": client.post(check, params={"of": part}, data=changed),
        }
        threads = (
            recorded(monkeypatch, yaml, "safe_dump"),
            recorded(monkeypatch, config_write, "changes_of"),
        )
        for step, asks in steps.items():
            answer = await asks
            assert answer.status_code in (200, 412), f"{step}: {answer.text}"
            assert "flavor-63" in answer.text, step
            assert threads[0], step
            assert threading.current_thread().name not in threads[0] | threads[1], step
            threads[0].clear()
        assert threads[1]


async def test_a_large_new_object_is_checked_alongside_the_event_loop(
    access: MemoryAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = recorded(monkeypatch, configuration, "validate")
    text = large_text().replace('"made"', '"another"')
    async with asking(APP, ADMIN) as client:
        answer = await client.post("/ui/config/check", data={"text": text})
    assert "another would be created" in answer.text
    assert threads
    assert threading.current_thread().name not in threads


async def test_the_reviews_of_one_dry_run_are_few(access: MemoryAccess) -> None:
    """A right to a kind, or to a namespace, settles all of its objects; rights to single ones are bounded."""
    access.know("of-a-team", "team", Right("update", "localqueues", "team-vision"))
    for token, namespace, status, most in (
        (ADMIN, "team-{}", 200, 5),
        ("of-a-team", "team-vision", 200, 40),
        ("of-a-team", "team-{}", 403, MOST_REVIEWS + 40),
    ):
        access.asked.clear()
        body = orjson.dumps(queues(3000, namespace))
        answer = await sent(token, "POST", "/api/v1/dryrun", body, JSON)
        assert answer.status_code == status, answer.text[:200]
        assert len(access.asked) <= most


async def test_a_dry_run_accepts_the_narrowest_right(access: MemoryAccess) -> None:
    name = "of-one-queue"
    access.know(name, name, Right("update", "localqueues", "team-vision", "queue-0"))
    access.know(name, name, Right("update", "localqueues", "team-speech"))
    own = orjson.dumps(queues(1, "team-vision"))
    assert (await sent(name, "POST", "/api/v1/dryrun", own, JSON)).status_code == 200
    other = orjson.dumps(queues(2, "team-vision"))
    answer = await sent(name, "POST", "/api/v1/dryrun", other, JSON)
    assert answer.status_code == 403
    assert "localqueues queue-1" in answer.json()["detail"]


async def test_bodies_are_bounded_wherever_they_are_read(access: MemoryAccess) -> None:
    lists = {"/api/v1/dryrun", "/api/v1/plans"}
    for method, path in [*WRITING, ("POST", "/api/v1/session")]:
        if path in WITHOUT_BODY:
            continue
        if path in lists:
            most = MAX_LIST_BYTES
        elif path.startswith("/ui/"):
            most = MAX_FORM_BYTES
        elif "workloads" in path or "session" in path or path.endswith("/subscriptions"):
            most = MAX_SMALL
        else:
            most = MAX_BYTES
        async with asking(APP, ADMIN) as client:
            answer = await client.request(
                method,
                filled(path),
                content=b" " * (most + 1),
                headers={"Content-Type": media_of(method, path), "If-Match": "*"},
            )
        assert answer.status_code == 413, f"{method} {path}: {answer.text[:200]}"


BOMBS: dict[str, tuple[bytes, str]] = {
    "aliases": (b"a: &a [1]\nb: [*a, *a]", "aliases"),
    "nested lists": (b"a: " + b"[" * 100_000, "nested"),
    "nested mappings": (b"a: " + b"{" * 100_000, "nested"),
    "nested blocks": (b"- " * 100_000, "nested"),
    "nested keys": (b"? " * 100_000, "nested"),
    "many values": (b"[" + b"[]," * (MAX_VALUES + 1) + b"]", "too many values"),
    "directives": (b"%TAG !a! x\n" * 20_000 + b"--- a", "directives"),
    "a number in base 60": (b"a: " + b"1:" * 100_000 + b"1", "number"),
    "a long number": (b"a: " + b"9" * 200_000, "number"),
    "keys that collide": (b"{%d: 1}" % (2**61 - 1), "key is not a string"),
    "merge keys": (b"<<: {a: 1}", "key is not a string"),
    "UTF-16": ("a: 1\n%TAG".encode("utf-16"), "not also JSON"),
}


@pytest.mark.parametrize(("body", "why"), BOMBS.values(), ids=BOMBS.keys())
async def test_yaml_that_is_made_to_cost_is_refused(
    access: MemoryAccess, body: bytes, why: str
) -> None:
    answer = await sent(ADMIN, "PUT", "/api/v1/cohorts/{name}", body, YAML)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]
    text = urlencode({"text": body.decode(errors="replace")}).encode()
    form = await sent(ADMIN, "POST", "/ui/config/check", text, FORM)
    assert form.status_code == 400


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * 1000 + b"]" * 1000, "nested"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested"),
        (b"[" + b"[]," * MAX_VALUES + b"[]]", "values"),
    ],
    ids=["nested lists", "nested mappings", "many values"],
)
async def test_json_that_is_made_to_cost_is_refused(
    access: MemoryAccess, body: bytes, why: str
) -> None:
    answer = await sent(ADMIN, "PUT", "/api/v1/cohorts/{name}", body, JSON)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]


async def test_yaml_with_what_people_write_is_read(access: MemoryAccess) -> None:
    text = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: made}   # a comment
"""
    async with asking(APP, ADMIN) as client:
        answer = await client.put(
            "/api/v1/cohorts/made", content=text, headers={"Content-Type": YAML}
        )
        assert answer.status_code in (200, 201), answer.text
        largest = {**CLUSTER_QUEUE, "metadata": {"name": "made"}}
        body = padded(largest, MAX_BYTES)
        answer = await client.put(
            "/api/v1/clusterqueues/made?dry_run=true",
            content=body,
            headers={"Content-Type": JSON},
        )
        assert answer.status_code == 200, answer.text
