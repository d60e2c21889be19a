"""Questions to the planner share one throttle: one at a time, with a limited wait, and none after the process stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from queuectl.control.questions import throttle as throttling
from queuectl.control.questions.throttle import MOST_OF_ONE, PlannerThrottle, asking
from queuectl.domain.errors import TookTooLong
from queuectl.planner import StopSignal


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
        asking.set(caller)
        async with throttle.turn():
            await release.wait()

    asked = [asyncio.create_task(ask("ana")) for _ in range(MOST_OF_ONE)]
    await asyncio.sleep(0)
    with pytest.raises(TookTooLong, match="requests of ana wait already"):
        await asyncio.create_task(ask("ana"))
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


async def answered(
    throttle: PlannerThrottle,
    caller: str,
    work: Callable[[StopSignal], str],
    seconds: float = 20.0,
) -> str:
    """The answer to a question of this caller."""

    async def ask() -> str:
        asking.set(caller)
        async with throttle.turn():
            return await throttle.work_out(work, seconds)

    return await asyncio.create_task(ask())


class Deaf:
    """Work that does not read its signal, until the test ends it."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def __call__(self, _: StopSignal) -> str:
        self.end.wait(60)
        return "late"


async def test_a_question_that_cannot_be_stopped_is_left_behind_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttling, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(throttling, "OTHERS_SECONDS", 0.0)
    throttle, deaf = PlannerThrottle(0.4), Deaf()
    with pytest.raises(TookTooLong, match="did not end in time"):
        await answered(throttle, "ana", deaf, seconds=0.01)
    assert await answered(throttle, "bo", lambda _: "answer") == "answer"
    with pytest.raises(TookTooLong, match="an earlier request has not ended"):
        await answered(throttle, "ana", lambda _: "answer")
    deaf.end.set()


async def test_few_questions_can_be_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(throttling, "OTHERS_SECONDS", 0.0)
    throttle, deaf = PlannerThrottle(0.4), Deaf()
    for number in range(throttling.MOST_LEFT):
        with pytest.raises(TookTooLong, match="did not end in time"):
            await answered(throttle, f"user-{number}", deaf, seconds=0.01)
    with pytest.raises(TookTooLong, match="an earlier request has not ended"):
        await answered(throttle, "bo", lambda _: "answer")
    deaf.end.set()


async def test_a_question_that_reads_its_signal_ends_at_the_limit() -> None:
    throttle = PlannerThrottle(1.0)

    def obedient(stop: StopSignal) -> str:
        while not stop.stopped:
            time.sleep(0.001)
        return "stopped"

    assert await answered(throttle, "ana", obedient, seconds=0.01) == "stopped"
    assert await answered(throttle, "ana", lambda _: "answer") == "answer"


async def test_a_caller_that_asks_no_more_stops_its_question() -> None:
    throttle = PlannerThrottle(1.0)
    began, ended = threading.Event(), threading.Event()

    def work(stop: StopSignal) -> str:
        began.set()
        while not stop.stopped:
            time.sleep(0.001)
        ended.set()
        return "stopped"

    asked = asyncio.create_task(answered(throttle, "ana", work))
    await asyncio.to_thread(began.wait)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert ended.is_set()
    assert await answered(throttle, "ana", lambda _: "answer") == "answer", "none is left behind"


async def test_the_caller_that_has_used_least_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "OTHERS_SECONDS", 0.0)
    throttle = PlannerThrottle(1.0)
    order: list[str] = []
    throttle._charge("ana", 10.0)
    throttle._charge("bo", 1.0)

    async def ask(caller: str) -> None:
        asking.set(caller)
        async with throttle.turn():
            order.append(caller)
            await throttle.work_out(lambda _: "answer", 20.0)

    async with throttle.turn():
        asked = [asyncio.create_task(ask(caller)) for caller in ("ana", "ana", "bo", "cy")]
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert order == ["cy", "bo", "ana", "ana"]


async def test_the_pause_after_a_long_question_is_for_its_caller() -> None:
    throttle = PlannerThrottle(0.001)
    throttle._charge("ana", 60.0)
    throttle._rested = 0.0  # the part of the pause that is for others has ended
    assert await answered(throttle, "bo", lambda _: "answer") == "answer"

    async def ask() -> None:
        asking.set("ana")
        async with throttle.turn(wait=0.01):
            pytest.fail("the pause has not ended")

    with pytest.raises(TookTooLong, match="other requests took too long"):
        await asyncio.create_task(ask())
