"""The Budgets and Reservations of the cluster that the pictures show (tests/system/picture_run.py)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from queuectl.demo.scenario import Document
from queuectl.domain.quantity import GPU
from queuectl.objects.configuration.config_kinds import API_VERSION
from tests.system.installation import BLOCK, RACK


def budgets(now: datetime) -> Iterator[Document]:
    """A Budget of each kind of holder, and the top-up of one of them."""
    yield _budget("language", clusterQueue="language", gpuHoursPerMonth=2000)
    yield _budget("vision", clusterQueue="vision", gpuHoursPerMonth=600, wholeRun=True)
    yield _budget("speech", namespace="speech", gpuHoursPerMonth=400)
    yield _budget(
        "omar-haddad",
        user="omar.haddad",
        gpuHoursPerMonth=10,
        whenSpent="LowerPriority",
        priorityWhenSpent=1,
    )
    yield _object(
        "BudgetTopUp",
        "speech-interspeech",
        budget="speech",
        month=f"{now:%Y-%m}",
        gpuHours=100,
        reason="deadline of Interspeech",
    )


def reservations(now: datetime) -> Iterator[Document]:
    """One that has begun, one of a team, one for maintenance, and one of all nodes, which a gang of unknown length makes impossible."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0) + timedelta(days=1)
    yield _reservation(
        "live-demo",
        hour - timedelta(hours=1),
        6,
        "demonstration for partners",
        **_pods("vision", 2),
    )
    yield _reservation(
        "whisper-release",
        day + timedelta(hours=8),
        12,
        "training of the next release",
        **_pods("speech", 4, preferredTopology=RACK),
    )
    yield _reservation(
        "firmware",
        _first_tuesday(day) + timedelta(hours=6),
        2,
        "firmware updates",
        nodes=["b1-r3-h6", "b1-r3-h7"],
        evict=True,
        recurrence="FREQ=MONTHLY;BYDAY=1TU",
    )
    yield _reservation(
        "acceptance-test",
        day + timedelta(days=2),
        8,
        "acceptance test of both blocks",
        **_pods("language", 64, preferredTopology=BLOCK),
    )


def _first_tuesday(day: datetime) -> datetime:
    """Of a month, on this day or after it."""
    days = (day + timedelta(days=number) for number in range(40))
    return next(each for each in days if each.weekday() == 1 and each.day <= 7)


def _pods(queue: str, pods: int, **topology: str) -> dict[str, Any]:
    """Capacity of whole nodes for a ClusterQueue."""
    capacity = {"pods": pods, "requests": {GPU: 8}, "flavor": "h100", **topology}
    return {"clusterQueue": queue, "capacity": capacity}


def _reservation(name: str, begin: datetime, hours: int, reason: str, **spec: Any) -> Document:
    until = begin + timedelta(hours=hours)
    times = {"from": _time(begin), "until": _time(until)}
    return _object("Reservation", name, **spec, **times, reason=reason)


def _budget(name: str, **spec: Any) -> Document:
    return _object("Budget", name, **spec)


def _object(kind: str, name: str, **spec: Any) -> Document:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
