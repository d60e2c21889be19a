"""What was asked of a workload is told until it is answered, and a page does not ask for ever."""

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


def next_look(page: str) -> tuple[str, float] | None:
    """Where the page looks next and after how many seconds; None = it does not."""
    fragment = page[page.index('id="asked"') :]
    found = re.search(r"load delay:(\d+)ms", fragment)
    address = re.search(r'hx-get="([^"]+)"', fragment)
    assert address is not None
    return (unescape(address[1]), int(found[1]) / 1000) if found is not None else None


async def test_a_page_looks_again_at_growing_distances_and_not_for_ever(
    sample: Sample, pages: httpx2.AsyncClient
):
    await ask(sample)
    look = next_look((await pages.get("/ui/workloads/run-00001")).text)
    waits: list[float] = []
    while look is not None:
        address, seconds = look
        waits.append(seconds)
        assert len(waits) < 50
        look = next_look((await pages.get(address)).text)
    assert waits == sorted(waits)
    assert LEAST < sum(waits) < MOST


async def test_what_is_asked_meanwhile_is_followed_from_the_start(
    sample: Sample, pages: httpx2.AsyncClient
):
    first = await ask(sample)
    late = f"{ASKED}?newest={first.id}&looks=12"
    assert next_look((await pages.get(late)).text) is None
    await ask(sample, Action.PREEMPT)
    look = next_look((await pages.get(late)).text)
    assert look is not None
    assert look[1] < 1


async def test_once_it_is_answered_the_page_is_made_anew_and_looks_no_more(
    sample: Sample, pages: httpx2.AsyncClient
):
    await ask(sample)
    waiting = await pages.get(ASKED)
    await answer(sample, DONE)
    done = await pages.get(ASKED)
    assert "hx-trigger" not in waiting.headers
    assert done.headers["hx-trigger"] == "live"
    assert next_look(done.text) is None


@pytest.mark.parametrize(
    ("action", "more", "words"),
    [
        (Action.HOLD, {"why": "bad data"}, "Hold, requested by ann: bad data"),
        (Action.PRIORITY, {"priority": 7}, "Priority 7, requested by ann"),
        (Action.PRIORITY, {"priority": 7, "until": NOW}, "Priority 7 until 2026-11-18 11:06:40 UTC, requested by ann"),
        (Action.PRIORITY, {"priority": None}, "Priority from its priority classes, requested by ann"),
        (Action.MOVE, {"queue": "batch"}, "Move to LocalQueue batch, requested by ann"),
    ],
)  # fmt: skip
async def test_it_says_what_was_asked(
    sample: Sample,
    pages: httpx2.AsyncClient,
    action: Action,
    more: dict[str, Any],
    words: str,
):
    await ask(sample, action, **more)
    text = (await pages.get(ASKED)).text
    assert words in " ".join(re.sub(r"<[^>]+>", "", text).split())


async def test_the_newest_of_many_come_first(sample: Sample, pages: httpx2.AsyncClient):
    for number in range(601):
        await ask(sample, why=f"number {number}")
        await answer(sample, DONE if number % 2 else "it was so already")
    told = re.findall(r"number (\d+)", (await pages.get(ASKED)).text)
    assert told == ["600", "599", "598"]


async def test_what_others_asked_of_a_hidden_gang_is_hidden(tenant: httpx2.AsyncClient):
    assert (await tenant.get("/ui/workloads/aside-0/asked")).status_code == 404
