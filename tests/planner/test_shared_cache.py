"""Plans and diagnoses in threads that share one cache are those of one thread without a cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.fleet import NodeRules
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose
from tests.planner.generate import crowded

_SEEDS = range(6)
_SELECTORS = 4


def _selecting(pending: Pending, key: str) -> Pending:
    """The same gang, confined to nodes with a label that no node has."""
    podsets = []
    for podset in pending.workload.podsets:
        rules = NodeRules(
            (*podset.shape.rules.selector, (key, "yes")),
            podset.shape.rules.affinity,
            podset.shape.rules.tolerations,
        )
        podsets.append(replace(podset, shape=replace(podset.shape, rules=rules)))
    uid = f"{pending.workload.uid}-{key}"
    workload = replace(pending.workload, uid=uid, name=uid, podsets=tuple(podsets))
    return replace(pending, workload=workload)


def _snapshots() -> list[Snapshot]:
    """Several of each fleet, so that threads add to the cache of one fleet at the same time."""
    return [
        replace(
            base, pending=(*base.pending, *(_selecting(p, f"key-{number}") for p in base.pending))
        )
        for base in map(crowded, _SEEDS)
        for number in range(_SELECTORS)
    ]


def _answers(snapshot: Snapshot, cache: PlannerCache | None) -> tuple[Plan, list[Diagnosis]]:
    made = plan(snapshot, cache=cache)
    uids = [pending.workload.uid for pending in snapshot.pending]
    return made, [diagnose(snapshot, uid, plan=made, cache=cache) for uid in uids]


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_threads_that_share_a_cache_get_the_answers_of_one_thread() -> None:
    snapshots = _snapshots()
    alone = [_answers(snapshot, None) for snapshot in snapshots]
    cache = PlannerCache()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda snapshot: _answers(snapshot, cache), snapshots))
    assert any(one.fleet is other.fleet for one, other in pairwise(snapshots))
    assert together == alone
