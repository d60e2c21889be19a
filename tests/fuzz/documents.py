"""Configuration documents and requests: each is accepted, or refused with an error that names its field.

A document goes through its reader, the files of ``queuectl plan``, and the API with the configuration that it makes. A request goes through
the API. A status of 500 and more is a defect, and so is an error that is not :class:`BadInput`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from contextlib import suppress
from functools import cache
from pathlib import Path as File
from typing import Any, Final

import httpx2
import yaml

from queuectl.api.app import create_app
from queuectl.domain.errors import MOST_REFUSAL, BadInput
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.configuration.links import dangling
from queuectl.objects.configuration.queue_config import READERS, build, validate
from queuectl.objects.documents import read_documents
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import (
    LIVES,
    FixedClusterReader,
    FixedDiagnoser,
    FixedHealth,
    job,
    live_through,
)
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.fuzz.figures import Result
from tests.fuzz.mutated import CHANGES, PLAUSIBLE, Document, mutated
from tests.planner.build import gang, holding, node, podset, world
from tests.support.mutations import Path
from tests.support.readable import READABLE

ROOT: Final = File(__file__).parents[2]
_FENCE: Final = re.compile(r"^( *)```ya?ml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_METHODS: Final = ("PUT", "PATCH", "POST")
_OWN: Final = "queuectl.dev/v1"


def _own(kind: str, spec: Document) -> Document:
    return {"apiVersion": _OWN, "kind": kind, "metadata": {"name": "a"}, "spec": spec}


_TIMES: Final = {"from": "2027-03-01T08:00:00Z", "until": "2027-03-01T20:00:00Z"}
_CAPACITY: Final = {
    "pods": 4,
    "requests": {"nvidia.com/gpu": 8},
    "flavor": "h100",
    "preferredTopology": "topology.queuectl.dev/rack",
}
_OCCURRENCE: Final = {"recurrence": "FREQ=MONTHLY;BYDAY=1MO", "timeZone": "Europe/Berlin"}
_QUOTA: Final = {"flavor": "h100", "resource": "nvidia.com/gpu", "nominalQuota": 16}
LITERAL: Final = (
    _own("Budget", {"clusterQueue": "a", "gpuHoursPerMonth": 1000, "timeZone": "Europe/Berlin"}),
    _own("Budget", {"user": "ann", "gpuHoursPerMonth": "1.5"}),
    _own("BudgetTopUp", {"budget": "a", "gpuHours": 5, "reason": "x", "month": "2027-03"}),
    _own("Reservation", {"clusterQueue": "a", **_TIMES, "capacity": _CAPACITY, "reason": "x"}),
    _own("Reservation", {"nodes": ["n0", "n1"], **_TIMES, **_OCCURRENCE, "evict": True}),
    _own("QuotaOverride", {"clusterQueue": "a", **_TIMES, **_QUOTA}),
)
"""Objects of kinds that the pages show in part only."""
_WHO: Final = {"by": "ann", "why": "x"}
BODIES: Final[dict[str, Document]] = {
    **dict.fromkeys(("hold", "release", "requeue", "preempt", "deactivate", "activate"), _WHO),
    "priority": {"priority": 5, "until": "2027-01-01T00:00:00Z", **_WHO},
    "move": {"queue": "other", **_WHO},
    "check": {
        "check": "external",
        "state": "Ready",
        "message": "x",
        "requeueAfterSeconds": 60,
        "podSetUpdates": [{"name": "main", "labels": {"a": "b"}, "nodeSelector": {"a": "b"}}],
        **_WHO,
    },
}
"""A body of each command."""
WHAT_IF: Final[Document] = {
    "submit": [READABLE["jobs"][1][0], READABLE["jobsets"][1][0]],
    "config": [],
    "manifests": "",
    "delete": [{"kind": "LocalQueue", "namespace": "default", "name": "main"}],
    "drain": ["n0"],
    "add": [{"like": "n1", "count": 2}],
}
REQUESTS: Final = frozenset(("document", "dryrun", "plans", "command", "stop", "topup", "reading"))
FEATURES: Final = frozenset((*READERS, *CHANGES))
"""Each kind of document, and each kind of change."""


@cache
def valid() -> tuple[Document, ...]:
    """All configuration objects of the documentation, the examples and the fixtures."""
    found: list[Document] = []
    texts = [path.read_text() for path in sorted(ROOT.glob("docs/examples/**/*.yaml"))]
    texts += [path.read_text() for path in sorted(ROOT.glob("tests/fixtures/**/*.yaml"))]
    for page in sorted(ROOT.glob("docs/**/*.md")):
        texts += [match[2] for match in _FENCE.finditer(page.read_text())]
    for text in texts:
        found += _of(text)
    for one in LITERAL:
        validate(one)
    found += LITERAL
    unique = {json.dumps(one, sort_keys=True): one for one in found}
    return tuple(unique.values())


def _of(text: str) -> list[Document]:
    try:
        parts = [document.body for document in read_documents(text)]
    except BadInput:
        return []
    found = []
    for one in parts:
        if one.get("kind") in READERS:
            try:
                validate(one)
                found.append(json.loads(json.dumps(one)))
            except (BadInput, TypeError):
                continue
    return found


def _head(path: Path) -> bool:
    """The kind decides which reader it is given to."""
    return path[:1] in (("kind",), ("apiVersion",))


class Documents:
    """The stage. One API, with a store in memory, answers the requests of all inputs."""

    def __init__(self) -> None:
        last = {name: live_through(job(name), *life)[-1].after for name, life in LIVES.items()}
        self._uids = sorted(entry.uid for entry in last.values())
        self._entries = {entry.uid: entry for entry in last.values()}

    def __call__(self, seed: int) -> Result:
        rng, result = random.Random(f"document {seed}"), Result()
        by_kind: dict[str, list[Document]] = {}
        for one in valid():
            by_kind.setdefault(one["kind"], []).append(one)
        kinds = rng.sample(sorted(by_kind), min(4, len(by_kind)))
        features = set(kinds)
        texts: list[tuple[str, bytes]] = []
        accepted: list[Document] = []
        for kind in kinds:
            wire = READERS[kind].wire
            text, changes = mutated(rng, rng.choice(by_kind[kind]), wire, _head)
            features |= changes
            texts.append((kind, text))
            accepted += self._read(text, result)
        if accepted:
            config = build(accepted, 1)
            dangling(config)
            result.counted["configurations"] += 1
        asyncio.run(self._requests(rng, texts, result))
        result.features = frozenset(features)
        return result

    @staticmethod
    def _read(text: bytes, result: Result) -> list[Document]:
        """The stored forms of a text as a file, if it is accepted."""
        result.counted["documents"] += 1
        try:
            found = [validate(one)[0] for one in read_documents(text)]
        except BadInput as error:
            if not str(error) or len(str(error)) > MOST_REFUSAL:
                result.defects.append(f"the message has {len(str(error))} characters")
            return []
        result.counted["documents that are accepted"] += len(found)
        for one in found:
            again, _ = validate(json.loads(json.dumps(one)))
            if again != one:
                result.defects.append(f"the stored form is not stable: {one} becomes {again}")
        return found

    async def _requests(
        self, rng: random.Random, texts: list[tuple[str, bytes]], result: Result
    ) -> None:
        store = MemoryStore(MemoryDatabase(entries=dict(self._entries)))
        nodes = [node(f"n{i}", f"r{i // 2}", gpu=8) for i in range(4)]
        running = [holding(gang("a", podset(count=2, gpu=8)), {"n0": 2})]
        reader = FixedClusterReader(world(nodes, [], running), store)
        app = create_app(
            store,
            FixedHealth(),
            MetricsRecorder().registry,
            FixedDiagnoser(),
            cluster_reader=reader,
        )
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for kind, text in texts:
                await self._document(rng, client, kind, text, result)
            for _ in range(3):
                method, path, body = self._request(rng, texts)
                await self._sent(client, method, path, body, result)

    async def _document(
        self,
        rng: random.Random,
        client: httpx2.AsyncClient,
        kind: str,
        text: bytes,
        result: Result,
    ) -> None:
        """Put it, read it, change it, and read the lists that show it."""
        name, namespace = _address(text)
        of = BY_KIND[kind]
        where = f"/namespaces/{namespace}" if of.namespaced else ""
        path = f"/api/v1{where}/{of.plural}/{name}"
        status = await self._sent(client, "PUT", path, text, result)
        if status in (200, 201):
            result.counted["documents that are stored"] += 1
            await self._sent(client, "GET", path, b"", result)
            await self._sent(client, "PATCH", path, rng.choice((b"{}", text)), result)
        await self._sent(client, "GET", f"/api/v1{where}/{of.plural}", b"", result)

    def _request(
        self, rng: random.Random, texts: list[tuple[str, bytes]]
    ) -> tuple[str, str, bytes]:
        match rng.choice(sorted(REQUESTS)):
            case "document" | "dryrun":
                return (
                    "POST",
                    "/api/v1/dryrun",
                    b'{"items":[%b]}' % b",".join(t for _, t in texts),
                )
            case "plans":
                body = WHAT_IF | {"config": [rng.choice(valid())]}
                return "POST", "/api/v1/plans", mutated(rng, body, None, _no)[0]
            case "stop":
                body = {"drain": True, "reason": "x"}
                return (
                    "POST",
                    "/api/v1/clusterqueues/main/stop",
                    mutated(rng, body, None, _no)[0],
                )
            case "topup":
                body = {"gpuHours": 5, "reason": "x", "month": "2027-03"}
                return "POST", "/api/v1/budgets/main/topups", mutated(rng, body, None, _no)[0]
            case "reading":
                path = rng.choice(("workloads", "commands", "nodes", "decisions", "audit"))
                name = rng.choice(("limit", "cursor", "state", "before", "namespace", "sort"))
                value = rng.choice((*PLAUSIBLE, "9" * 30, "%00", "a" * 400))
                query = httpx2.QueryParams({name: value})
                return "GET", f"/api/v1/{path}?{query}", b""
            case _:
                action = rng.choice(sorted(BODIES))
                uid = rng.choice(self._uids)
                text = mutated(rng, BODIES[action], None, _no)[0]
                return "POST", f"/api/v1/workloads/{uid}/{action}", text

    @staticmethod
    async def _sent(
        client: httpx2.AsyncClient, method: str, path: str, body: bytes, result: Result
    ) -> int:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind} if method in _METHODS else {}
        if method == "PATCH":
            headers["If-Match"] = "*"
        try:
            answer = await client.request(method, path, content=body, headers=headers)
        except httpx2.InvalidURL:
            return 0
        result.counted["requests"] += 1
        result.counted[f"status {answer.status_code // 100}xx"] += 1
        if answer.status_code >= 500:
            result.defects.append(f"{method} {path}: {answer.status_code} for {body[:2000]!r}")
        return int(answer.status_code)


def _no(_: Path) -> bool:
    return False


def _address(text: bytes) -> tuple[str, str]:
    """Name and namespace as the client puts them in the path."""
    meta: Any = None
    with suppress(ValueError, yaml.YAMLError, KeyError, TypeError, RecursionError):
        meta = yaml.safe_load(text)["metadata"]
    known = meta if isinstance(meta, dict) else {}
    name, namespace = known.get("name") or "default", known.get("namespace") or "default"
    return _segment(name), _segment(namespace)


def _segment(value: Any) -> str:
    text = str(value)[:200]
    return httpx2.QueryParams({"": text}).__str__()[1:] or "default"
