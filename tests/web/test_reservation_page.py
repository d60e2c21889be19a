"""The page of Reservations: their times, and their nodes or the reason why they have none."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuectl.domain.identity import Right
from queuectl.domain.reservations import ReservationState
from queuectl.domain.words import format_time
from tests.api.conftest import talking_to
from tests.web.sample import NOW, Sample
from tests.web.test_config import command_service

CAPACITY = {"clusterQueue": "vision", "capacity": {"pods": 2, "requests": {"nvidia.com/gpu": 8}}}
ALL = Right("list", "reservations")


def reservation(name: str, begins: float, ends: float, **spec: Any) -> dict[str, Any]:
    times = {"from": format_time(NOW + begins), "until": format_time(NOW + ends)}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {**times, **(spec or CAPACITY)},
    }


async def keep(sample: Sample) -> None:
    for document in (
        reservation("over", -7200, -3600),
        reservation("planned", 3600, 7200),
        reservation("active", -60, 3600),
        reservation("crowded", 60, 3600),
        reservation("firmware", 120, 3600, nodes=["gpu-00-00-00"]),
    ):
        await sample.store.put_config(document)
    begins, ends = float(int(NOW)), float(int(NOW)) + 3600
    sample.store.database.reserved = (
        ReservationState("planned", begins + 3600, begins + 7200, (("gpu-00-01-00", 2),)),
        ReservationState("active", begins - 60, ends, (("gpu-00-02-00", 2),)),
        ReservationState("crowded", begins + 60, ends, (), "at most 1 of 2 pods fit", ends + 60),
    )


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("planned", ["Planned", "vision", "2 pods with 8 nvidia.com/gpu each", "gpu-00-01-00"]),
        ("active", ["Active", "gpu-00-02-00"]),
        ("crowded", ["NotPlaceable", "at most 1 of 2 pods fit", "the earliest start"]),
        ("firmware", ["Planned", "gpu-00-00-00"]),
        ("over", ["Ended"]),
    ],
)
async def test_each_reservation_has_a_phase_and_its_nodes_or_a_reason(
    sample: Sample, name: str, shows: list[str]
) -> None:
    await keep(sample)
    async with talking_to(command_service(sample)) as client:
        text = (await client.get("/ui/reservations")).text
    row = text.split(f'href="/ui/config/reservations/{name}"')[1].split("</tr>")[0]
    assert [part for part in shows if part not in row] == []


async def test_they_are_in_the_order_of_their_starts_and_the_ended_ones_last(
    sample: Sample,
) -> None:
    await keep(sample)
    async with talking_to(command_service(sample)) as client:
        text = (await client.get("/ui/reservations")).text
    names = ["active", "crowded", "firmware", "planned", "over"]
    assert sorted(names, key=lambda name: text.index(f"/reservations/{name}")) == names
    assert "/ui/config/new?kind=reservations" in text


@pytest.mark.parametrize(
    ("rights", "says"), [((ALL,), "planned"), ((Right("list", "nodes"),), "You may not list")]
)
async def test_the_rights_of_the_caller_count(
    sample: Sample, rights: tuple[Right, ...], says: str
) -> None:
    await keep(sample)
    async with talking_to(command_service(sample, *rights)) as client:
        answer = await client.get("/ui/reservations")
    assert answer.status_code == httpx2.codes.OK
    assert says in answer.text
    assert "New Reservation" not in answer.text
