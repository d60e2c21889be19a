"""Expected starts as ranges: their values, how often they are right, their cost, and that they are always the same."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from random import Random
from statistics import NormalDist

import pytest

from queuectl.domain.estimates import ExpectedStart
from queuectl.domain.snapshot import Snapshot
from queuectl.durations.expectations import RunTimes
from queuectl.estimates.expected_starts import (
    LEAST_DRAWS,
    MOST_DRAWS,
    MOST_WORK,
    SHARED,
    expected_starts,
)
from queuectl.estimates.forward import Forward
from queuectl.estimates.scene import scene_of
from queuectl.planner.cache import PlannerCache
from tests.estimates.build import certain, scene
from tests.planner.build import NOW, gang, holding, node, podset, queue, world

NODES = [node(f"n{i}", gpu=1) for i in range(4)]


def crowded(pending: int, nodes: int = 4) -> Snapshot:
    """Each gang has one GPU; all nodes are in use."""
    one = podset(gpu=1)
    running = [holding(gang(f"r{i}", one), {f"n{i}": 1}) for i in range(nodes)]
    waiting = [gang(f"p{i:03}", one, queued_at=float(i)) for i in range(pending)]
    return world([node(f"n{i}", gpu=1) for i in range(nodes)], waiting, running, queue())


def test_known_run_times_give_one_time() -> None:
    snapshot = crowded(2)
    runs = {f"r{i}": certain(100.0 * (i + 1)) for i in range(4)} | {
        uid: certain(50.0) for uid in ("p000", "p001")
    }
    found = expected_starts(scene(snapshot), runs)
    assert {uid: (s.median - NOW, s.p90) for uid, s in found.by_uid.items()} == {
        "p000": (100.0, NOW + 100.0),
        "p001": (150.0, NOW + 150.0),
    }
    assert (found.computed_at, found.gangs, found.left_out) == (NOW, 2, 0)


def test_unknown_run_times_give_no_estimate() -> None:
    snapshot = crowded(1)
    assert (
        expected_starts(scene(snapshot), dict.fromkeys(("r0", "r1", "r2", "r3", "p000"))).by_uid
        == {}
    )


def test_gangs_that_are_too_far_behind_are_left_out_and_counted() -> None:
    snapshot = crowded(30)
    runs = {uid: certain(100.0) for uid in uids(snapshot)}
    found = expected_starts(scene(snapshot, 10), runs)
    assert (len(found.by_uid), found.gangs, found.left_out) == (10, 10, 20)
    assert max(found.by_uid) == "p009"


def uids(snapshot: Snapshot) -> list[str]:
    return sorted(scene(snapshot).uids)


def exponential(random: Random, mean: float, number: int) -> tuple[float, ...]:
    return tuple(sorted(random.expovariate(1 / mean) for _ in range(number)))


def test_the_same_input_gives_the_same_ranges_and_a_gang_more_behind_changes_none() -> None:
    known = RunTimes(exponential(Random(1), 600.0, 40))
    first, again, more = (
        expected_starts(scene(crowded(n)), dict.fromkeys(uids(crowded(n)), known), draws=40)
        for n in (5, 5, 6)
    )
    assert first == again
    assert first.by_uid.items() <= more.by_uid.items()


def test_an_estimate_has_a_limit_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = crowded(300, nodes=20)
    known = RunTimes(exponential(Random(1), 600.0, 40))
    given, runs = scene(snapshot), dict.fromkeys(uids(snapshot), known)
    draw = Forward(given, {uid: known.left(0.5) for uid in runs}, lambda: None)
    draw.run()
    drawn: list[None] = []
    run = Forward.run

    def counted(draw: Forward) -> Mapping[str, float]:
        drawn.append(None)
        return run(draw)

    monkeypatch.setattr(Forward, "run", counted)
    expected_starts(given, runs)
    number = len(drawn)
    assert LEAST_DRAWS <= number <= MOST_DRAWS
    assert number <= max(LEAST_DRAWS, 1.2 * MOST_WORK / draw.work)


def shares(shared: float) -> tuple[float, float]:
    """Of the starts by the median, and of those by the 90th percentile, of gangs of one group.

    Worlds with run times of one distribution: 30 known ones for the estimate, and others that happen. The deviations of those have a
    correlation of ``shared``.
    """
    random, part_of = Random(7), NormalDist().cdf
    by_median = by_p90 = number = 0
    for _ in range(240):
        snapshot = crowded(6)
        given = scene(snapshot)
        scale = random.choice((60.0, 600.0, 6000.0))
        known = RunTimes(exponential(random, scale, 30))
        found = expected_starts(given, dict.fromkeys(uids(snapshot), known), draws=39)
        together = sqrt(shared) * random.gauss()
        parts = {
            uid: part_of(together + sqrt(1 - shared) * random.gauss()) for uid in uids(snapshot)
        }
        real = {uid: -scale * log(1 - part) for uid, part in parts.items()}
        happened = Forward(given, real, lambda: None).run()
        for uid, at in happened.items():
            start = found.by_uid[uid]
            assert start.p90 is not None
            number += 1
            by_median += at <= start.median
            by_p90 += at <= start.p90
    assert number == 1440
    return by_median / number, by_p90 / number


def test_gangs_start_by_the_quantiles_as_often_as_these_say_if_run_times_deviate_together() -> None:
    by_median, by_p90 = shares(SHARED)
    assert by_median == pytest.approx(0.5, abs=0.05)
    assert by_p90 == pytest.approx(0.9, abs=0.04)


def test_more_gangs_start_by_the_90th_percentile_if_run_times_deviate_independently() -> None:
    _, by_p90 = shares(0.0)
    assert by_p90 >= 0.9


def test_gangs_of_two_users_deviate_independently() -> None:
    """Two gangs hold a node each, and both end before the pending gang starts."""
    pair = podset(count=2, gpu=1)
    running = [holding(gang(uid, podset(gpu=1)), {f"n{i}": 1}) for i, uid in enumerate("ab")]
    snapshot = world(NODES[:2], [gang("p", pair)], running, queue())
    times = exponential(Random(1), 600.0, 40)

    def of(first: str, second: str) -> ExpectedStart:
        runs = {
            uid: RunTimes(times, group=("cq", user, 0))
            for uid, user in (("a", first), ("b", second), ("p", first))
        }
        return expected_starts(scene(snapshot), runs, draws=999).by_uid["p"]

    one, two = of("ann", "ann"), of("ann", "bob")
    assert one.median < two.median, "the later of two independent ends is later"


def test_the_preparation_checks_before_each_search_whether_it_is_to_end() -> None:
    calls = []
    pending = [gang(f"p{gpus}", podset(gpu=gpus), queued_at=1.0) for gpus in range(1, 9)]
    snapshot = world([node("n", gpu=8)], pending, [], queue())
    made = scene_of(snapshot, PlannerCache(), 100, lambda: calls.append(1))
    assert len(made.waiting) == len(pending)
    assert len(calls) > len(pending)
