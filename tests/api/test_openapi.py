"""docs/reference/openapi.json describes the API; a change of the API is a visible change of that file."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
from fastapi import FastAPI

from queuectl.objects.configuration.config_kinds import CONFIG_KINDS
from queuectl.objects.configuration.queue_config import READERS
from tests.api import wire_types
from tests.api.renew_openapi import COMMITTED
from tests.support.pages import PAGES

RENEW = "renew it: uv run python -m tests.api.renew_openapi"


def references(value: Any) -> set[str]:
    """All $refs inside a value."""
    if isinstance(value, dict):
        inner = set().union(*map(references, value.values())) if value else set()
        return inner | ({value["$ref"]} if "$ref" in value else set())
    return set().union(*map(references, value)) if isinstance(value, list) and value else set()


def test_the_committed_description_is_the_true_one(app: FastAPI) -> None:
    assert json.loads(COMMITTED.read_text()) == app.openapi(), RENEW


def test_the_types_of_the_client_are_those_of_the_description(app: FastAPI) -> None:
    assert wire_types.WRITTEN.read_text() == wire_types.source(app.openapi()), RENEW


def test_the_page_names_the_parameter_for_the_next_page_of_each_list(app: FastAPI) -> None:
    parameters: dict[str, set[str]] = {"cursor": set(), "before": set(), "after": set()}
    for path, methods in app.openapi()["paths"].items():
        name = path.removeprefix("/api/v1/")
        of_workload = ("workloads/{uid}/", "namespaces/{namespace}/workloads/{name}/")
        short = f"…/{name.rpartition('/')[2]}" if name.startswith(of_workload) else name
        for parameter in methods.get("get", {}).get("parameters", []):
            if parameter["in"] == "query" and parameter["name"] in parameters and name != "events":
                parameters[parameter["name"]].add(short)
    text = PAGES["api.md"].read_text().partition("## Read a list page by page\n")[2]
    rows = [line.split("|")[1:4] for line in text.partition("\n\n## ")[0].splitlines()]
    shown = {
        parameter.strip(" `"): {name.partition("?")[0] for name in re.findall(r"`([^`]+)`", lists)}
        for lists, field, parameter in (row for row in rows if len(row) == 3)
        if "`next" in field
    }
    assert shown == parameters


async def test_it_is_served(client: httpx2.AsyncClient, app: FastAPI) -> None:
    answer = await client.get("/api/v1/openapi.json")
    assert answer.json() == app.openapi()
    assert answer.json()["openapi"].startswith("3.1")


def test_every_reference_has_a_schema_and_every_schema_is_referenced(
    app: FastAPI,
) -> None:
    schemas = app.openapi()["components"]["schemas"]
    assert references(app.openapi()) == {f"#/components/schemas/{name}" for name in schemas}


def test_every_described_error_is_a_problem(app: FastAPI) -> None:
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (path, method)


def test_each_kind_of_the_table_has_a_reader() -> None:
    assert [kind.kind for kind in CONFIG_KINDS] == list(READERS)
