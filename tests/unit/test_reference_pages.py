"""The pages about REST, the Python client and events name all that the code offers."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from queuectl.client.client import Client
from queuectl.domain.notifications import EventType

DOCS = Path(__file__).parents[2] / "docs"
INTERNAL = {
    "objects",
    "pages",
    "send",
}  # methods that take a request of the package queuectl.client.requests


def words(page: str) -> set[str]:
    """The words of the code on a page."""
    text = (DOCS / page).read_text()
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    return {word for part in code for word in re.findall(r"[\w.-]+", part)}


def test_the_page_of_rest_names_each_resource_and_query_parameter() -> None:
    paths = json.loads((DOCS / "reference" / "openapi.json").read_text())["paths"]
    resources = {
        path.removeprefix("/api/v1/").removeprefix("namespaces/{namespace}/").partition("/")[0]
        for path in paths
        if not path.endswith("openapi.json")
    }
    parameters = {
        parameter["name"]
        for operations in paths.values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    }
    assert not (resources | parameters) - words("reference/api.md")


def test_the_page_of_the_python_client_names_each_method() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    public = {name for name in methods if not name.startswith("_")} - INTERNAL
    named = {part for word in words("how-to/python.md") for part in word.split(".")}
    assert not public - named


def test_the_page_of_events_names_each_event() -> None:
    assert not {event.value for event in EventType} - words("reference/events.md")
