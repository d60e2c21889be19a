"""Stragglers: which ranks are slow compared with their peers, and one report for each episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.control.leader.periodic import NodeHealthWatch
from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.fleet import Node
from queuectl.domain.node_health import (
    GpuClock,
    GpuFault,
    HealthMode,
    NodeHealthRules,
    Straggler,
)
from queuectl.domain.queues import IdleReclaim
from queuectl.domain.reasons import Code
from queuectl.domain.records import NodeRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.lifecycle.nodes import Stragglers
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.mirror import Mirror
from queuectl.state.readiness import WINDOW, find_stragglers
from queuectl.telemetry.metrics import MetricsRecorder
from tests.unit.test_idleness import RUNNING
from tests.unit.test_state import RESUMED, World, on

NOW = 10_000.0
RULES = NodeHealthRules()
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
STARTED = NOW - 2 * WINDOW
FAST, SLOW = (1980.0, 1965.0), (1980.0, 990.0)


class Source:
    """Of clocks; None = it does not answer."""

    clocks_now: Sequence[GpuClock] | None = ()

    async def clocks(self, *_: object) -> Sequence[GpuClock]:
        if self.clocks_now is None:
            raise SourceUnavailable("Prometheus is down")
        return self.clocks_now

    async def faults(self, *_: object) -> Sequence[GpuFault]:
        return ()

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("rules", "answers", "known"),
    [
        (RULES, True, []),
        (replace(RULES, straggler_below=0.0), True, []),
        (replace(RULES, mode=HealthMode.OFF), True, []),
        (RULES, False, None),
    ],
    ids=["none is slow", "the comparison is off", "health is off", "the source does not answer"],
)
async def test_the_number_of_stragglers_ends_with_its_evaluations(
    rules: NodeHealthRules, *, answers: bool, known: list[Straggler] | None
) -> None:
    recorder = MetricsRecorder()
    metrics, source = recorder.node_health, Source()
    metrics.compared([Straggler("u1", 1, "cq", "p1", "n1", "GPU 0", 990.0, 1980.0)])
    source.clocks_now = () if answers else None
    watch = NodeHealthWatch(
        source, Mirror({}), metrics, lambda: NOW, evaluation_seconds=30, timeout=1
    )
    assert await watch.compare([], rules) == known
    labels = {"cluster_queue": "cq"}
    assert recorder.registry.get_sample_value("queuectl_stragglers", labels) is None


def found(clocks: Sequence[Sequence[float]], **options: Any) -> list[str]:
    """The names of the slow pods."""
    return [one.pod for one in stragglers(clocks, **options)]


def stragglers(
    clocks: Sequence[Sequence[float]],
    *,
    models: Sequence[str] = (),
    started: Sequence[float] = (),
    shared: frozenset[int] = frozenset(),
    rules: NodeHealthRules = RULES,
) -> list[Straggler]:
    """The stragglers of a gang. ``clocks``: of the GPUs of each pod that the source reports; each pod has two."""
    mirror, pods, measured = Mirror({}), [], []
    for number, mhz in enumerate(clocks):
        labels = {"nvidia.com/gpu.product": models[number] if models else H100}
        mirror.apply([Upserted(NodeRecord(Node(f"n{number}", labels), 1))])
        mirror.apply([Upserted(on(f"p{number}", f"n{number}", rank=number))])
        uid = next(uid for uid, pod in mirror.pods.items() if pod.name == f"p{number}")
        began = started[number] if started else STARTED
        pods.append(HeldPod("a", f"p{number}", uid, 2, began, number in shared))
        measured += [GpuClock(("a", f"p{number}"), f"GPU {i}", each) for i, each in enumerate(mhz)]
    gang = HeldGang("u1", 1, "cq", IdleReclaim(), NOW, tuple(pods))
    return find_stragglers([gang], measured, mirror, rules, NOW)


def test_a_report_names_the_rank_its_node_and_the_clock_of_its_peers() -> None:
    [one] = stragglers([FAST, FAST, SLOW, (1950.0, 1935.0)])
    assert (one.rank, one.podset, one.pod, one.node, one.device) == (2, "main", "p2", "n2", "GPU 1")
    assert (one.mhz, one.peers_mhz, round(one.part, 3)) == (990.0, 1965.0, 0.504)


@pytest.mark.parametrize(
    ("clocks", "options", "slow"),
    [
        ([FAST, FAST, SLOW, FAST], {}, ["p2"]),
        ([FAST, FAST, FAST], {}, []),
        ([FAST, FAST, (1980.0, 1500.0)], {}, []),
        ([SLOW, SLOW, SLOW], {}, []),
        ([FAST, SLOW], {}, []),
        ([FAST, FAST, SLOW], {"models": [H100, H100, A100]}, []),
        ([FAST, FAST, (990.0,)], {}, []),
        ([FAST, FAST, ()], {}, []),
        ([FAST, FAST, SLOW], {"started": [STARTED, STARTED, NOW - 10]}, []),
        ([FAST, FAST, SLOW], {"shared": frozenset({2})}, []),
        ([FAST, FAST, SLOW], {"rules": NodeHealthRules(straggler_below=0.4)}, []),
    ],
    ids=["slow", "equal", "a little slower", "all slow", "one peer", "another model", "a GPU without samples",
         "no samples", "young", "shared", "the rule"],
)  # fmt: skip
def test_a_rank_is_slow_only_if_its_peers_are_known_and_faster(
    clocks: list[tuple[float, ...]], options: dict[str, object], slow: list[str]
) -> None:
    assert found(clocks, **options) == slow


def straggler(pod: str = "p1") -> Straggler:
    return Straggler(
        RUNNING.uid, RUNNING.attempt, "cq", pod, "n1", "GPU 3", 990.0, 1980.0, "main", 7
    )


@given(st.lists(st.sampled_from([500.0, 990.0, 1200.0, 1650.0, 1980.0]), min_size=1, max_size=7))
@settings(max_examples=60)
def test_a_rank_is_compared_with_the_median_of_all_others(clocks: list[float]) -> None:
    expected = [
        (f"p{number}", median(peers))
        for number, mhz in enumerate(clocks)
        if len(peers := clocks[:number] + clocks[number + 1 :]) >= 2
        and mhz < RULES.straggler_below * median(peers)
    ]
    slow = stragglers([(mhz, 2000.0) for mhz in clocks])
    assert sorted((one.pod, one.peers_mhz) for one in slow) == expected


def test_an_episode_is_reported_once() -> None:
    world = World(RUNNING, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
    known, codes = Stragglers(180.0), []
    for number, now_slow in enumerate([[straggler()], [straggler()], [], [straggler()]]):
        known.update(now_slow, NOW + number)
        changes = known.changes(world.ledger, Rules(), NOW + number, ())
        world.ledger.apply(changes)
        codes.append([change.note.reason.code for change in changes if change.note])
    assert codes == [[Code.STRAGGLER], [], [], [Code.STRAGGLER]]


def test_a_report_waits_for_a_gang_that_changes_for_another_reason() -> None:
    world = World(RUNNING, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
    known = Stragglers(180.0)
    assert known.update([straggler()], NOW)
    assert known.changes(world.ledger, Rules(), NOW, {RUNNING.uid}) == []
    (change,) = known.changes(world.ledger, Rules(), NOW, ())
    assert change.note is not None
    text = "pod p1 on n1: GPU 3 runs at 50% of the clock of its peers (990 of 1980 MHz)"
    assert change.note.reason.message == f"rank 7 of podset main, {text}"
    assert change.note.reason.details["stragglers"] == [
        {
            "podSet": "main",
            "rank": 7,
            "pod": "p1",
            "node": "n1",
            "device": "GPU 3",
            "partOfPeers": 0.5,
        }
    ]
    assert str(replace(straggler(), rank=None)) == text


def test_an_old_evaluation_is_not_shown() -> None:
    known = Stragglers(180.0)
    known.update([straggler()], NOW)
    assert known.of(RUNNING.uid, RUNNING.attempt, NOW + 180.0)
    assert not known.of(RUNNING.uid, RUNNING.attempt, NOW + 181.0)
    assert not known.of(RUNNING.uid, RUNNING.attempt + 1, NOW)
