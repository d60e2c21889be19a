"""Reservations over REST and on the command line: a read has the status, a write ignores it, and the doctor reports what has no place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from queuectl.api.app import create_app
from queuectl.api.reservation_status import with_status
from queuectl.cli.columns import config_columns
from queuectl.cli.doctor import judge
from queuectl.cli.doctor.findings import Level
from queuectl.domain.reservations import ReservationState
from queuectl.domain.words import format_time
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.times import parse_time
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import talking_to
from tests.api.support import FixedDiagnoser, FixedHealth
from tests.doubles.store import MemoryStore

PATH = "/api/v1/reservations/talk"
FROM, UNTIL = "2026-03-02T08:00:00Z", "2026-03-02T10:00:00Z"
BEGINS, ENDS = parse_time(FROM), parse_time(UNTIL)
HOUR, WEEK = 3600.0, 7 * 86400.0
PLACED = ReservationState("talk", BEGINS, ENDS, (("n0", 2),))
REFUSED = ReservationState("talk", BEGINS, ENDS, (), "at most 1 of 2 pods fit", ENDS)
GONE = ReservationState("talk", BEGINS, ENDS, (), "node n1 does not exist")
NODES = [{"name": "n0", "pods": 2}]


def reservation(**spec: Any) -> dict[str, Any]:
    capacity = {"pods": 2, "requests": {"nvidia.com/gpu": 4}}
    given = {"clusterQueue": "team-a", "capacity": capacity, "from": FROM, "until": UNTIL, **spec}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": "talk"},
        "spec": {key: value for key, value in given.items() if value is not None},
    }


MAINTENANCE = reservation(clusterQueue=None, capacity=None, nodes=["n1"])


@pytest.mark.parametrize(
    ("document", "states", "now", "status"),
    [
        (reservation(), (), BEGINS - 1, {"phase": "Pending", "from": FROM, "until": UNTIL}),
        (reservation(), (PLACED,), BEGINS - 1, {"phase": "Planned", "from": FROM, "until": UNTIL, "nodes": NODES}),
        (reservation(), (PLACED,), BEGINS, {"phase": "Active", "from": FROM, "until": UNTIL, "nodes": NODES}),
        (reservation(), (REFUSED,), BEGINS, {"phase": "NotPlaceable", "from": FROM, "until": UNTIL,
                                            "reason": REFUSED.reason, "earliest": UNTIL}),
        (reservation(), (PLACED,), ENDS, {"phase": "Ended"}),
        (reservation(recurrence="FREQ=WEEKLY"), (PLACED,), ENDS,
         {"phase": "Pending", "from": format_time(BEGINS + WEEK), "until": format_time(ENDS + WEEK)}),
        (MAINTENANCE, (), BEGINS - 1, {"phase": "Planned", "from": FROM, "until": UNTIL, "nodes": [{"name": "n1"}]}),
        (MAINTENANCE, (GONE,), BEGINS, {"phase": "NotPlaceable", "from": FROM, "until": UNTIL, "reason": GONE.reason,
                                        "nodes": [{"name": "n1"}]}),
        (MAINTENANCE, (), BEGINS, {"phase": "Active", "from": FROM, "until": UNTIL, "nodes": [{"name": "n1"}]}),
    ],
)  # fmt: skip
def test_the_status_is_that_of_the_current_or_next_occurrence(
    document: dict[str, Any],
    states: Sequence[ReservationState],
    now: float,
    status: dict[str, Any],
) -> None:
    assert with_status(document, states, now) == {**document, "status": status}


GPUS = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.example.com"
BY_AMOUNT = "devices of ResourceSlices cannot be kept by amount: name the nodes in spec.nodes"


@pytest.mark.parametrize(("resource", "of_devices"), [(GPUS, {GPUS}), (IMPLICIT, set())])
async def test_a_reservation_of_an_amount_of_devices_is_refused(
    resource: str, of_devices: set[str]
) -> None:
    diagnoser = FixedDiagnoser()
    diagnoser.devices = frozenset(of_devices)
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry, diagnoser)
    asked = reservation(capacity={"pods": 1, "requests": {resource: 2}})
    async with talking_to(app) as api:
        refused = await api.put(PATH, json=asked)
        tried = await api.put(PATH, json=asked, params={"dry_run": "true"})
        assert (await api.get(PATH)).status_code == 404
        assert (await api.put(PATH, json=reservation())).status_code == 201
    for answer in (refused, tried):
        assert answer.status_code == 422
        assert (
            f"spec.capacity.requests: no node has {resource}; {BY_AMOUNT}"
            in answer.json()["detail"]
        )


async def test_a_read_document_can_be_written_again(api: httpx2.AsyncClient) -> None:
    begins = time.time() + HOUR
    times = {"from": format_time(begins), "until": format_time(begins + HOUR)}
    created = await api.put(PATH, json=reservation(**times))
    assert created.status_code == 201
    read = (await api.get(PATH)).json()
    assert read["status"] == {"phase": "Pending", **times}
    assert (await api.get("/api/v1/reservations")).json()["items"] == [read]
    assert (await api.put(PATH, json=read)).json()["result"] == "unchanged"
    assert (await api.delete(PATH)).status_code == 204


@pytest.mark.parametrize(
    ("document", "states", "cells"),
    [
        (reservation(), (PLACED,), ["talk", "team-a", "2 pods x 4 nvidia.com/gpu", FROM, UNTIL, "Planned"]),
        (MAINTENANCE, (), ["talk", None, "1 node", FROM, UNTIL, "Planned"]),
    ],
)  # fmt: skip
def test_a_list_shows_capacity_times_and_phase(
    document: dict[str, Any], states: Sequence[ReservationState], cells: list[Any]
) -> None:
    shown = with_status(document, states, BEGINS - 1)
    columns = [column for column in config_columns(BY_KIND["Reservation"]) if not column.wide]
    assert [column.cell(shown) for column in columns] == cells


def test_the_doctor_reports_reservations_without_a_placement() -> None:
    found = [with_status(reservation(), states, BEGINS) for states in ((PLACED,), (REFUSED,))]
    (finding,) = judge.reservations(found)
    assert finding.level is Level.WARNING
    assert finding.message == "Reservation talk: at most 1 of 2 pods fit"
