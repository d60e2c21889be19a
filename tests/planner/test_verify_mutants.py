"""The verifier accepts every plan of the planner and rejects each mutant of it, with the right rule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import MakeRoom, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import KnownUse, verify
from tests.planner.generate_cohorts import contest
from tests.planner.generate_moves import tight
from tests.planner.mixed import mixed
from tests.planner.mutants import (
    MAKERS,
    MOVERS,
    RECLAIMERS,
    Maker,
    after,
    take_what_is_kept_for_a_lease,
)
from tests.support.examples import EXPLORING

BLOCK, BLOCKS = 40, 8 if EXPLORING else 4
ACROSS = 5 if EXPLORING else 3
"""Blocks of 60 plans across queues."""


@cache
def planned(seed: int) -> tuple[Snapshot, Plan]:
    snapshot = mixed(seed)
    return snapshot, plan(snapshot)


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_plan_is_accepted(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        snapshot, made = planned(seed)
        assert verify(snapshot, made) == (), seed


@pytest.mark.seeds
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.replace("_", " "))
def test_every_mutant_is_rejected(make: Maker) -> None:
    made_wrong = 0
    for seed in range(BLOCK * BLOCKS):
        for mutant in make(*planned(seed)):
            rules = {v.rule for v in verify(mutant.snapshot, mutant.plan)}
            assert mutant.rule in rules, (seed, mutant.plan)
            made_wrong += 1
    assert made_wrong > 10


@pytest.mark.seeds
def test_the_use_known_from_another_plan_changes_no_verdict() -> None:
    """The gangs of two snapshots have the same uids, and other requests and places."""
    wrong = 0
    for seed in range(BLOCK * BLOCKS - 1):
        first, made = planned(seed)
        other, plan_of_other = planned(seed + 1)
        changed = replace(other, config=first.config)
        known = KnownUse()
        verify(first, made, known_use=known)
        verdict = verify(changed, plan_of_other)
        assert verify(changed, plan_of_other, known_use=known) == verdict, seed
        wrong += bool(verdict)
    assert wrong > 10


@cache
def reclaimed(seed: int) -> tuple[Snapshot, Plan]:
    """A plan for several pending gangs of a cohort."""
    snapshot = contest(seed, fair=bool(seed % 2), nodes=bool(seed % 3))
    return snapshot, plan(snapshot)


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(ACROSS))
def test_every_plan_across_queues_is_accepted(block: int) -> None:
    for seed in range(block * 60, (block + 1) * 60):
        snapshot, made = reclaimed(seed)
        assert verify(snapshot, made) == (), seed


@pytest.mark.seeds
@pytest.mark.parametrize("make", RECLAIMERS, ids=lambda make: make.__name__.replace("_", " "))
def test_every_mutant_with_a_victim_of_another_queue_is_rejected(make: Maker) -> None:
    made_wrong = 0
    for seed in range(60 * ACROSS):
        for mutant in make(*reclaimed(seed)):
            rules = {v.rule for v in verify(mutant.snapshot, mutant.plan)}
            assert mutant.rule in rules, (seed, mutant.plan)
            made_wrong += 1
    assert made_wrong > 10


@cache
def moved(seed: int) -> tuple[Snapshot, Plan]:
    """A plan with moves, if any plan has some."""
    snapshot = replace(tight(seed), make_room=MakeRoom())
    return snapshot, plan(snapshot)


@pytest.mark.parametrize("make", MOVERS, ids=lambda make: make.__name__.replace("_", " "))
def test_every_mutant_of_a_move_is_rejected(make: Maker) -> None:
    made_wrong = 0
    for seed in range(60):
        snapshot, made = moved(seed)
        assert verify(snapshot, made) == (), seed
        for mutant in make(snapshot, made):
            rules = {v.rule for v in verify(mutant.snapshot, mutant.plan)}
            assert mutant.rule in rules, (seed, mutant.plan)
            made_wrong += 1
    assert made_wrong > 10


def test_every_start_that_takes_capacity_kept_for_a_lease_is_rejected() -> None:
    """In the cycle after one that evicted: some victims have left, others have not, and more gangs leave besides."""
    made_wrong = 0
    for seed in range(4 * BLOCK):
        snapshot = mixed(seed)
        for number, gang in enumerate(snapshot.admitted):
            if seed % 3 == number % 3 and number < 3:
                admitted = list(snapshot.admitted)
                admitted[number] = replace(gang, leaving=True)
                snapshot = replace(snapshot, admitted=tuple(admitted))
        following = after(snapshot, plan(snapshot))
        made = plan(following)
        assert verify(following, made) == (), seed
        for mutant in take_what_is_kept_for_a_lease(following, made):
            rules = {v.rule for v in verify(mutant.snapshot, mutant.plan)}
            assert mutant.rule in rules, (seed, mutant.plan)
            made_wrong += 1
    assert made_wrong > 10
