"""Writes that fail are sent again at bounded intervals, whatever the number of failures and of events. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.cluster.client import Expired, Forbidden
from queuectl.control.leader.actuator import Actuator
from queuectl.control.leader.schedule import LAST_RETRY, Retries, Wakeup
from queuectl.domain.errors import (
    LONGEST_WAIT,
    ClusterBusy,
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.ledger import Purpose
from queuectl.lifecycle.outstanding_writes import POD, Write
from queuectl.lifecycle.refusals import WriteOutcome
from queuectl.telemetry.metrics import MetricsRecorder
from tests.doubles.cluster import FakeCluster
from tests.support.virtualtime import run

ERRORS = (
    WriteConflict("409"),
    ObjectGone("404"),
    ClusterUnavailable("no answer"),
    ClusterUnavailable("503", 1e9),
    ClusterBusy("429", 3.0),
    WriteRefused("a webhook denies it"),
    Forbidden("403"),
    Expired("410 of a webhook"),
)
WRITE = Write(POD, "team", "p0", "pod-0", 7, {"metadata": {}}, Purpose.PIN, 1)


class Failing(FakeCluster):
    """Answers each patch of a pod with an error, or with version 8, and notes the times."""

    def __init__(self) -> None:
        super().__init__()
        self.error: ClusterError | None = None
        self.sent: dict[str, list[float]] = {}

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        self.sent.setdefault(name, []).append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return 8


def acting(
    cluster: Failing, owed: Callable[[], list[Write]], seconds: float, poked: float | None = None
) -> None:
    """Run the actuator for a gang with these writes. ``poked``: seconds between the events of the watch."""

    async def main() -> None:
        actuator = Actuator(cluster, lambda _: owed(), MetricsRecorder(), 8)
        task = asyncio.create_task(actuator.run())
        actuator.poke(["gang"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await asyncio.sleep(poked or seconds)
                    actuator.poke(["gang"])
        assert not task.done(), "the actuator is still at work"
        task.cancel()
        await asyncio.wait({task})

    run(main())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_write_that_fails_thousands_of_times_is_still_sent_again(error: ClusterError) -> None:
    cluster = Failing()
    cluster.error = error
    longest = LONGEST_WAIT if error.args[0] == "503" else LAST_RETRY
    acting(cluster, lambda: [WRITE], 1100 * longest)
    times = cluster.sent["p0"]
    assert len(times) >= 1100
    assert times[-1] - times[-2] == pytest.approx(longest)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_events_do_not_multiply_the_retries(error: ClusterError) -> None:
    busy, quiet = Failing(), Failing()
    for cluster, every in ((busy, 0.05), (quiet, None)):
        cluster.error = error
        acting(cluster, lambda: [WRITE], 120, every)
    least = {"503": LONGEST_WAIT, "429": 3.0}.get(error.args[0], 0.2)
    assert len(busy.sent["p0"]) <= 120 / least + 2
    if isinstance(error, WriteRefused | Expired):
        assert len(busy.sent["p0"]) <= len(quiet.sent["p0"]) + 1


def test_a_refused_write_does_not_delay_writes_of_other_objects_or_purposes() -> None:
    cluster = Failing()
    cluster.error = WriteRefused("a webhook denies it")
    owed = [WRITE]

    def later() -> list[Write]:
        if len(cluster.sent.get("p0", ())) == 8:
            owed[:] = [WRITE, replace(WRITE, name="p1", uid="pod-1")]
        if len(cluster.sent.get("p1", ())) == 8:
            owed[:] = [replace(WRITE, name="p2", purpose=Purpose.STOP)]
        return owed

    acting(cluster, later, 600, 0.5)
    assert set(cluster.sent) == {"p0", "p1", "p2"}
    for name in ("p1", "p2"):
        first, second = cluster.sent[name][:2]
        assert second - first == pytest.approx(1.0, abs=0.5), "its failures are counted from one"


def test_a_write_over_a_newer_version_is_sent_at_once_after_a_conflict() -> None:
    cluster = Failing()
    cluster.error = WriteConflict("409")
    version = 7

    def owed() -> list[Write]:
        return [replace(WRITE, version=version)]

    acting(cluster, owed, 60)
    slow = len(cluster.sent["p0"])

    def newer() -> list[Write]:
        nonlocal version
        version += 1
        return owed()

    acting(cluster, newer, 60, 0.1)
    assert len(cluster.sent["p0"]) - slow >= 500


@settings(max_examples=30)
@given(
    st.sampled_from([one for one in WriteOutcome if one is not WriteOutcome.TOOK_EFFECT]),
    st.integers(1, 1500),
    st.none() | st.floats(0, 1e300).map(lambda at: ClusterUnavailable("", at).retry_after),
)
def test_each_delay_is_positive_and_bounded(
    outcome: WriteOutcome, count: int, asked: float | None
) -> None:
    retries, now = Retries(), 0.0
    for number in range(count):
        retries.failed("gang", WRITE, outcome, now, asked)
        due = retries.next_of("gang")
        assert due is not None
        assert now + 0.2 <= due or asked is not None
        assert due <= now + LONGEST_WAIT
        assert retries.ready("gang", [WRITE], due) == [WRITE], number
        now = due
    assert retries.ready("gang", [], now) == []
    assert retries.next_of("gang") is None


async def test_a_later_time_of_a_plan_replaces_an_earlier_one() -> None:
    wakeup = Wakeup()
    for _ in range(100):
        wakeup.plan_in(0.0)
    wakeup.plan_in(3600.0)
    wakeup.plan_due = False
    await asyncio.sleep(0.05)
    assert not wakeup.plan_due
    wakeup.plan_in(0.0)
    await wakeup.wait()
    assert wakeup.plan_due
