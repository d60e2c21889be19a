"""The page of Reservations: their times, and their nodes or the reason why they have none."""

from __future__ import annotations

import httpx2
import pytest

from queuectl.domain.identity import Right
from queuectl.web.pages.reservations import first_names
from tests.api.conftest import talking_to
from tests.web.sample import Sample
from tests.web.test_config import command_service

ALL = Right("list", "reservations")


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("planned", ["Planned", "vision", "2 pods with 8 nvidia.com/gpu each", "gpu-00-01-00"]),
        ("active", ["Active", "gpu-00-02-00"]),
        ("crowded", ["NotPlaceable", "at most 1 of 2 pods fit", "at the earliest"]),
        ("firmware", ["Planned", "gpu-00-00-00"]),
        ("over", ["Ended"]),
    ],
)
async def test_each_reservation_has_a_phase_and_its_nodes_or_a_reason(
    sample: Sample, name: str, shows: list[str]
) -> None:
    async with talking_to(command_service(sample)) as client:
        text = (await client.get("/ui/reservations")).text
    row = text.split(f'href="/ui/config/reservations/{name}"')[1].split("</tr>")[0]
    assert [part for part in shows if part not in row] == []


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [(2, "n0, n1"), (8, "n0, n1, n2, n3, n4, n5, n6, n7"), (9, "n0, n1, n2, n3, n4, n5, n6, n7 and 1 more node")],
)  # fmt: skip
def test_of_many_nodes_the_first_are_named_and_the_others_counted(nodes: int, shown: str) -> None:
    assert first_names([f"n{number}" for number in range(nodes)]) == shown


async def test_they_are_in_the_order_of_their_starts_and_the_ended_ones_last(
    sample: Sample,
) -> None:
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
    async with talking_to(command_service(sample, *rights)) as client:
        answer = await client.get("/ui/reservations")
    assert answer.status_code == httpx2.codes.OK
    assert says in answer.text
    assert "New Reservation" not in answer.text
