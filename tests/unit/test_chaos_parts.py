"""The parts of the fault suite that need no control plane: groups of faults, hostile objects, and the check of the soak."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from random import Random

import pytest

from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, Intent, State
from tests.api.support import entry, job
from tests.chaos.audit import unequal
from tests.chaos.faults import FAULTS, MOST, compatible, together
from tests.chaos.hostile import CLASSES, LEVELS, body


@pytest.mark.parametrize("seed", range(20))
def test_a_round_has_each_fault_once_in_groups_of_compatible_faults(seed: int) -> None:
    draw = Random(seed)
    groups = list(together(draw.sample(sorted(FAULTS), len(FAULTS)), draw))
    assert sorted(itertools.chain(*groups)) == sorted(FAULTS)
    assert all(compatible(group) for group in groups)
    assert {len(group) for group in groups} <= set(range(1, MOST + 1))


def test_no_fault_needs_an_api_server_that_another_one_stops() -> None:
    assert not compatible(["API server frozen", "node lost"])
    assert not compatible(["database killed", "database frozen"])
    assert compatible(["database killed", "API server killed", "leader killed"])


@pytest.mark.parametrize("name", CLASSES)
def test_the_objects_of_a_hostile_class_have_different_names_and_can_be_written(name: str) -> None:
    kind = CLASSES[name]
    for size in (kind.short, kind.size):
        made = list(kind.build(name, size))
        names = [(one["kind"], one["metadata"]["name"]) for one in made]
        assert len(made) >= size
        assert len({*names}) == len(names)
        for one in made:
            text = body(one)
            assert text.count("[") + text.count("{") > LEVELS or json.loads(text) == one
        json.dumps(kind.change(made[0], 1))


def test_deep_objects_nest_as_deep_as_they_claim() -> None:
    texts = [body(one) for one in CLASSES["deep"].build("deep", 1)]
    nested = [text for text in texts if max(text.count("["), text.count("{")) >= LEVELS]
    assert len(nested) == len(texts) - 1, "the job that uses the template is not deep itself"


WHOLE = replace(entry("running"), intent=None)
JOB = job("running")
PODS = tuple(
    PodRecord("team-a", f"p{number}", f"uid-p{number}", 1, owner=JOB.uid, node=node)
    for number, node in enumerate(("node-1", "node-1", "node-2", "node-2"))
)


@pytest.mark.parametrize(
    ("entries", "pods", "difference"),
    [
        ([WHOLE], PODS, None),
        ([], PODS, "running is not in the ledger"),
        ([WHOLE, replace(WHOLE, uid="other")], PODS, "has no job"),
        ([replace(WHOLE, state=State.STARTING)], PODS, "is Starting"),
        ([replace(WHOLE, intent=Intent.START)], PODS, "not confirmed"),
        ([WHOLE], PODS[1:], "has {'node-1': 2, 'node-2': 2}, its pods {'node-1': 1, 'node-2': 2}"),
        ([WHOLE], (*PODS, replace(PODS[0], uid="fifth")), "its pods {'node-1': 3"),
        ([WHOLE], (replace(PODS[0], node=None), *PODS[1:]), "'no node': 1"),
        ([WHOLE], (*PODS, replace(PODS[0], owner="gone")), "p0 belongs to no job"),
    ],
)
def test_the_soak_finds_each_difference_of_ledger_and_cluster(
    entries: list[Entry], pods: tuple[PodRecord, ...], difference: str | None
) -> None:
    found = unequal(entries, [replace(JOB, uid=WHOLE.uid)], pods)
    assert (found == []) if difference is None else any(difference in line for line in found), found
