"""Gangs that wait alike share the answers about the gangs that run: what one of them gets never depends on the others."""

from __future__ import annotations

import pytest

from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.explain import diagnose_those
from tests.planner.fuzz_plans import cycles_of

SEEDS = range(900, 930)


def diagnoses(snapshot: Snapshot, made: Plan) -> list[Diagnosis]:
    """Of the first gangs that wait."""
    uids = frozenset(refusal.uid for refusal in made.pending[:4])
    return list(diagnose_those(snapshot, uids, plan=made))


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_and_diagnoses_are_the_same_if_each_question_is_asked_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [(each, made, diagnoses(each, made)) for each, made in cycles_of(seed, 2)]
    monkeypatch.setattr(CycleState, "answers", lambda *_: {})
    for snapshot, made, explained in known:
        assert plan(snapshot) == made
        assert diagnoses(snapshot, made) == explained
