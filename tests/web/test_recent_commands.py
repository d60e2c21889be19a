"""A page shows the results of commands, and stops to read them after a minute."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import httpx2
import pytest

from queuectl.domain.commands import DONE, Action, Command
from tests.web.sample import NOW, Sample
from tests.web.serve_sample import answer

ASKED = "/ui/workloads/run-00001/asked"
LEAST, MOST = 10, 120  # seconds for which a page follows


async def ask(sample: Sample, action: Action = Action.HOLD, **more: Any) -> Command:
    number = len(sample.database.commands)
    command = Command(0, "run-00001", action, "ann", f"request-{number}", NOW)
    return await sample.store.add_command(replace(command, **more))


def next_read(page: str) -> tuple[str, float] | None:
    """The address of the next read and its delay in seconds; None = no next read."""
    fragment = page[page.index('id="asked"') :]
    found = re.search(r"load delay:(\d+)ms", fragment)
    address = re.search(r'hx-get="([^"]+)"', fragment)
    assert address is not None
    return (unescape(address[1]), int(found[1]) / 1000) if found is not None else None


async def test_a_page_reads_at_growing_intervals_and_then_stops(
    sample: Sample, pages: httpx2.AsyncClient
):
    await ask(sample)
    read = next_read((await pages.get("/ui/workloads/run-00001")).text)
    waits: list[float] = []
    while read is not None:
        address, seconds = read
        waits.append(seconds)
        assert len(waits) < 50
        read = next_read((await pages.get(address)).text)
    assert waits == sorted(waits)
    assert LEAST < sum(waits) < MOST


async def test_a_new_command_starts_the_intervals_again(sample: Sample, pages: httpx2.AsyncClient):
    first = await ask(sample)
    late = f"{ASKED}?newest={first.id}&reads=12"
    assert next_read((await pages.get(late)).text) is None
    await ask(sample, Action.PREEMPT)
    read = next_read((await pages.get(late)).text)
    assert read is not None
    assert read[1] < 1


async def test_a_page_is_refreshed_after_the_last_result_and_stops_reading(
    sample: Sample, pages: httpx2.AsyncClient
):
    await ask(sample)
    waiting = await pages.get(ASKED)
    await answer(sample, DONE)
    done = await pages.get(ASKED)
    assert "hx-trigger" not in waiting.headers
    assert done.headers["hx-trigger"] == "live"
    assert next_read(done.text) is None


@pytest.mark.parametrize(
    ("action", "more", "words"),
    [
        (Action.HOLD, {"why": "bad data"}, "Hold, requested by ann: bad data"),
        (Action.PRIORITY, {"priority": 7}, "Priority 7, requested by ann"),
        (Action.PRIORITY, {"priority": 7, "until": NOW}, "Priority 7 until 2026-11-18 11:06 UTC, requested by ann"),
        (Action.PRIORITY, {"priority": None}, "Priority from its priority classes, requested by ann"),
        (Action.MOVE, {"queue": "batch"}, "Move to LocalQueue batch, requested by ann"),
    ],
)  # fmt: skip
async def test_a_command_is_shown_with_its_values(
    sample: Sample,
    pages: httpx2.AsyncClient,
    action: Action,
    more: dict[str, Any],
    words: str,
):
    await ask(sample, action, **more)
    text = (await pages.get(ASKED)).text
    assert words in " ".join(re.sub(r"<[^>]+>", "", text).split())


async def test_the_newest_commands_are_first(sample: Sample, pages: httpx2.AsyncClient):
    for number in range(601):
        await ask(sample, why=f"number {number}")
        await answer(sample, DONE if number % 2 else "it was so already")
    numbers = re.findall(r"number (\d+)", (await pages.get(ASKED)).text)
    assert numbers == ["600", "599", "598"]


async def test_commands_for_a_hidden_gang_are_hidden(tenant: httpx2.AsyncClient):
    assert (await tenant.get("/ui/workloads/aside-0/asked")).status_code == 404
