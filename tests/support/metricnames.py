"""The metrics that the documentation lists, and whether an expression uses them as they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference" / "metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w, -]+) \|", re.MULTILINE)
_USE = re.compile(r"\b((?:queuectl|process)_\w+)(?:\{([^}]*)\})?")
_GROUP = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_PARTS = ("_bucket", "_sum", "_count")


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Name to type and labels."""
    rows = _ROW.findall(DOCS.read_text())
    return {name: (kind, frozenset(by.split(", ")) - {"-"}) for name, kind, by in rows}


def faults(expr: str) -> list[str]:
    """Errors in an expression: metrics or labels of queuectl that do not exist."""
    known = documented()
    found: list[str] = []
    labels: set[str] = {"le", "instance", "job"}
    for name, matchers in _USE.findall(expr):
        if name.startswith("process_"):
            continue
        base = next((name.removesuffix(p) for p in _PARTS if name.endswith(p)), name)
        kind, has = known.get(name) or known.get(base) or ("", frozenset())
        if not kind or (kind == "histogram") != (name.endswith(_PARTS) and base in known):
            found.append(f"{name} is not a series of queuectl")
        labels |= has
        asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        found += [f"{name} has no label {label}" for label in asked if label not in has]
    for group in _GROUP.findall(expr):
        found += [
            f"no series in it has a label {label}"
            for label in re.findall(r"\w+", group)
            if label not in labels
        ]
    return found
