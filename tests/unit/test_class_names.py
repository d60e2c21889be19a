"""A public class name is used once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TWICE = {"Client"}
"""The name of the public Python client is also that of the local control plane, which no other package imports."""


def test_each_public_class_name_is_defined_once() -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "queuectl").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 1000
    assert {name: lines for name, lines in places.items() if len(lines) > 1}.keys() == TWICE
