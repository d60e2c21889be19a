"""Every answer to a generated request is one that the OpenAPI description allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from queuectl.api.app import create_app
from queuectl.domain.ledger import Checked
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
from tests.planner.build import gang, holding, node, podset, world
from tests.support.examples import examples

HOST = {"Host": "127.0.0.1"}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

database = MemoryDatabase(
    entries={
        last.uid: last
        for name, life in LIVES.items()
        for last in [live_through(job(name), *life)[-1].after]
    }
)
store = MemoryStore(database)
NODES = [node(f"n{i}", f"r{i // 2}", gpu=8) for i in range(4)]
cluster_reader = FixedClusterReader(
    world(NODES, [], [holding(gang("a", podset(count=2, gpu=8)), {"n0": 2})]), store
)
leader = FixedDiagnoser()
leader.checked = Checked(100.0, 1, 2, 4, ())
schema = schemathesis.openapi.from_asgi(
    "/api/v1/openapi.json",
    create_app(
        store, FixedHealth(), MetricsRecorder().registry, leader, cluster_reader=cluster_reader
    ),
    headers=HOST,
    timeout=300,  # seconds, on a busy machine too
    config=SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": False}}}),
)


def addressed(case: Case[Any]) -> None:
    """Sets the name of the document to that of its path: random names never agree, so nothing would be stored."""
    body, path = case.body, case.path_parameters or {}
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if isinstance(metadata, dict) and "name" in path:
        metadata["name"] = path["name"]
        metadata.pop("namespace", None)


def ending(case: Case[Any]) -> None:
    """The event stream has no end, so its answer is not awaited."""
    if case.path == "/api/v1/events":
        case.query = {**(case.query or {}), "follow": "false"}


@pytest.fixture(scope="module")
def answered() -> Iterator[Counter[int]]:
    """How often each status was returned, for the operations that this process tests."""
    seen: Counter[int] = Counter()
    yield seen
    assert not seen[421], "nothing was refused for its Host"
    assert not any(status >= 500 for status in seen), seen


@schema.parametrize()
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_described(case: Case[Any], answered: Counter[int]) -> None:
    addressed(case)
    ending(case)
    response = case.call(headers=HOST)
    answered[response.status_code] += 1
    case.validate_response(response, checks=CHECKS)


@schema.include(method="PUT", path="/api/v1/cohorts/{name}").parametrize()
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_requests_pass_authentication(case: Case[Any], stored: Counter[int]) -> None:
    addressed(case)
    stored[case.call(headers=HOST).status_code] += 1


@pytest.fixture(scope="module")
def stored() -> Iterator[Counter[int]]:
    """The statuses of one operation, all of whose examples run in one process."""
    seen: Counter[int] = Counter()
    yield seen
    assert seen[201] or seen[200], "some of them were stored"
