"""Answers of the API server that are kept for a moment."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from queuectl.cluster.access import Remembered


class Oracle:
    """Counts who asks."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0.0
        self.fails = False
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> int:
        self.asked += 1
        await self.go.wait()
        if self.fails:
            raise OSError("away")
        return self.asked

    def remembered(self, seconds: float = 10.0, most: int = 100) -> Remembered[str, int]:
        return Remembered(lambda *_: seconds, most=most, clock=lambda: self.now)


async def test_an_answer_is_good_for_a_while() -> None:
    oracle = Oracle()
    known = oracle.remembered()
    assert [await known.get("a", oracle) for _ in range(3)] == [1, 1, 1]
    oracle.now = 9.9
    assert await known.get("a", oracle) == 1
    oracle.now = 10.0
    assert await known.get("a", oracle) == 2


async def test_how_long_depends_on_the_answer() -> None:
    oracle = Oracle()
    known: Remembered[str, int] = Remembered(
        lambda _, answer, __: 1.0 if answer == 1 else 100.0, most=10, clock=lambda: oracle.now
    )
    await known.get("a", oracle)
    oracle.now = 2.0
    assert await known.get("a", oracle) == 2
    oracle.now = 50.0
    assert await known.get("a", oracle) == 2


async def test_many_who_ask_at_once_ask_once() -> None:
    oracle = Oracle()
    oracle.go.clear()
    known = oracle.remembered()
    asking = [asyncio.create_task(known.get("a", oracle)) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()  # its browser closed the connection; the others still wait
    await asyncio.sleep(0)
    oracle.go.set()
    assert await asyncio.gather(*asking[1:]) == [1, 1, 1, 1]
    assert oracle.asked == 1


async def test_a_failure_is_everybodys_who_waits_and_is_not_kept() -> None:
    oracle = Oracle()
    oracle.fails = True
    known = oracle.remembered()
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await known.get("a", oracle)
    oracle.fails = False
    assert await known.get("a", oracle) == 3


async def test_a_failure_without_a_waiting_caller_is_not_logged() -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    oracle = Oracle()
    oracle.go.clear()
    oracle.fails = True
    asking = asyncio.create_task(oracle.remembered().get("a", oracle))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    oracle.go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del asking
    gc.collect()  # only then does asyncio log a failure that no code has read
    assert faults == []


async def test_the_least_recently_used_entry_is_removed_first() -> None:
    oracle = Oracle()
    known = oracle.remembered(most=2)
    for key in ("a", "b", "a", "c"):
        await known.get(key, oracle)
    assert len(known) == 2
    asked = oracle.asked
    await known.get("a", oracle)
    assert oracle.asked == asked
    await known.get("b", oracle)
    assert oracle.asked == asked + 1
