"""The health script for Argo CD, run as Argo CD does: Lua with the object as the global ``obj``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lupa
import pytest

SCRIPT = (Path(__file__).parents[2] / "deploy" / "optional" / "argocd-health.lua").read_text()


def health(document: dict[str, Any]) -> tuple[str, str]:
    """Status and message of an object."""
    runtime = lupa.LuaRuntime()
    runtime.globals().obj = runtime.table_from(document, recursive=True)
    answer = runtime.execute(SCRIPT)
    return answer["status"], answer["message"]


def queue(
    generation: int = 1, seen: int | None = None, stop: str | None = None, **conditions: Any
) -> dict[str, Any]:
    """A queue with conditions by their type: status, reason and message."""
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in conditions.items()
    ]
    status = {"observedGeneration": seen, "conditions": listed} if seen is not None else {}
    spec = {"stopPolicy": stop} if stop else {}
    return {"metadata": {"name": "a", "generation": generation}, "spec": spec, "status": status}


READY = ("True", "Used", "in use")
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata": {"name": "a"}}, "Progressing", "has not read"),
    ({"metadata": {"name": "a"}, "status": {}}, "Progressing", "has not read"),
    ({"metadata": {"name": "a"}, "value": 5, "status": {}}, "Progressing", "has not read"),
    (queue(seen=1), "Progressing", "has not read"),
    (queue(seen=1, Ready=("Unknown", "Unknown", "")), "Progressing", "has not read"),
    (queue(generation=2, seen=1, Ready=READY), "Progressing", "has not read"),
    (queue(seen=1, Ready=READY), "Healthy", "in use"),
    (queue(seen=1, Ready=READY, Active=("True", "Active", "")), "Healthy", "in use"),
    (queue(seen=1, Ready=("False", "Invalid", "spec.cohortName: no")), "Degraded", "spec.cohortName"),
    (queue(seen=1, Ready=("False", "NotOwner", "the database owns it")), "Degraded", "the database"),
    (queue(seen=1, Ready=READY, Active=("False", "FlavorNotFound", "no h100")), "Degraded", "no h100"),
    (queue(seen=1, stop="Hold", Ready=READY, Active=("False", "ClusterQueueStopped", "held")), "Suspended", "held"),
    (queue(seen=1, Ready=READY, Active=("False", "ClusterQueueStopped", "an operation")), "Suspended", "an operation"),
    (queue(seen=1, Ready=READY, Active=("False", "LocalQueueStopped", "held")), "Suspended", "held"),
    (queue(seen=1, stop="Hold", Ready=READY, Active=("False", "Misconfigured", "x")), "Degraded", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "status", "text"), CASES)
def test_the_health_follows_the_conditions(
    document: dict[str, Any], status: str, text: str
) -> None:
    found, message = health(document)
    assert found == status
    assert text in message
