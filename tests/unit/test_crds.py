"""The CRDs follow from the types that the REST API decodes. tests/operations/test_crd_validation.py uses them on an API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queuectl.objects.configuration.config_kinds import CUSTOM_KINDS, ConfigKind
from queuectl.objects.configuration.queue_config import READERS
from tests.support.crds import FOLDER, PAGE, REFUSED, files, page, schema
from tests.unit.test_config_fields import paths

KUEUE_SHORT_NAMES = {"cq", "lq", "queue", "queues", "rf", "flavor", "flavors", "wl", "ac"}
HEAD = {"", "apiVersion", "kind", "metadata"}


def parts(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each schema inside a schema, with the path of its field."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from parts(inner, f"{path}.{name}".lstrip("."))
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            yield from parts(node[keyword], path)


def first(path: str) -> str:
    return path.split(".", maxsplit=1)[0]


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=lambda kind: kind.kind)
class TestSchema:
    def test_it_has_each_field_that_rest_accepts(self, kind: ConfigKind) -> None:
        left_out = {"metadata", "status"}
        accepted = {
            path
            for path in paths(READERS[kind.kind].wire)
            if first(path) not in left_out and path.rpartition(".")[2] not in REFUSED
        }
        stated = {path for path, _ in parts(schema(kind.kind)) if path}
        assert {path for path in stated if first(path) not in left_out} == accepted

    def test_it_is_structural(self, kind: ConfigKind) -> None:
        for path, node in parts(schema(kind.kind)):
            assert {"$ref", "anyOf", "oneOf", "allOf", "not"}.isdisjoint(node), path
            typed = {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
            assert typed & node.keys(), path

    def test_each_list_map_and_text_is_bounded(self, kind: ConfigKind) -> None:
        for path, node in parts(schema(kind.kind)):
            if first(path) in HEAD:
                continue
            if node.get("type") == "array":
                assert {"maxItems", "x-kubernetes-list-type"} <= node.keys(), path
            if "additionalProperties" in node:
                assert "maxProperties" in node, path
            if node.get("type") == "string" and "format" not in node:
                assert {"maxLength", "enum"} & node.keys(), path

    def test_the_descriptions_are_plain_text(self, kind: ConfigKind) -> None:
        for path, node in parts(schema(kind.kind)):
            text = node.get("description", "Text.")
            assert text[:-1].strip(), path
            assert not {"`", "]("} & {text[i : i + n] for i in range(len(text)) for n in (1, 2)}, (
                path
            )


def test_the_files_are_current() -> None:
    written = {file: file.read_text() for file in FOLDER.iterdir()}
    assert written == files(), "run `make manifests`"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make manifests`"


def test_no_short_name_is_one_of_kueue() -> None:
    shorts = [kind.short for kind in CUSTOM_KINDS]
    assert len(set(shorts)) == len(shorts)
    assert KUEUE_SHORT_NAMES.isdisjoint(shorts)
