"""Questions to the planner share one throttle: one at a time, with a limited wait, and none after the process stops."""

from __future__ import annotations

import asyncio

import pytest

from queuectl.control.questions.throttle import MOST_OF_ONE, PlannerThrottle
from queuectl.domain.errors import TookTooLong


async def test_a_question_that_waits_too_long_for_another_one_is_refused() -> None:
    throttle = PlannerThrottle(1.0)
    async with throttle.turn():
        with pytest.raises(TookTooLong, match="other requests took too long"):
            async with throttle.turn(wait=0.01):
                pytest.fail("two questions at once")
    async with throttle.turn(wait=0.01):
        pass


async def test_one_caller_can_have_few_questions_that_wait() -> None:
    throttle = PlannerThrottle(1.0)
    release = asyncio.Event()

    async def ask(caller: str) -> None:
        async with throttle.turn(caller):
            await release.wait()

    asked = [asyncio.create_task(ask("ana")) for _ in range(MOST_OF_ONE)]
    await asyncio.sleep(0)
    with pytest.raises(TookTooLong, match="requests of ana wait already"):
        await ask("ana")
    asked.append(asyncio.create_task(ask("bo")))
    release.set()
    await asyncio.gather(*asked)


async def test_no_question_begins_after_the_process_stops() -> None:
    throttle = PlannerThrottle(1.0)
    async with throttle.turn():
        waiting = asyncio.create_task(_turn(throttle))
        await asyncio.sleep(0)
        throttle.stop()
    with pytest.raises(TookTooLong, match="this process stops"):
        await waiting


async def _turn(throttle: PlannerThrottle) -> None:
    async with throttle.turn():
        pytest.fail("a question began")
