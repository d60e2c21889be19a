"""Captures the snapshots that a program gives to the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from unittest.mock import patch

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot

Named: TypeAlias = tuple[str, Snapshot]


def captured(module: Any, run: Callable[[], object], name: str, most: int) -> Iterator[Named]:
    """Run it and keep the snapshots given to ``module.plan``: at most so many, evenly over the run, none twice."""
    found: dict[int, Snapshot] = {}
    planned = module.plan

    def keeping(snapshot: Snapshot, *rest: Any) -> Plan:
        found[id(snapshot)] = snapshot
        made: Plan = planned(snapshot, *rest)
        return made

    with patch.object(module, "plan", keeping):
        run()
    kept = list(found.values())
    yield from numbered(name, kept[:: max(1, -(-len(kept) // most))])


def numbered(name: str, snapshots: Iterable[Snapshot]) -> Iterator[Named]:
    """``name/0``, ``name/1``, …"""
    yield from ((f"{name}/{number}", snapshot) for number, snapshot in enumerate(snapshots))
