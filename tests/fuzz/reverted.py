"""Defects that the planner had, each put back by a patch of a few lines, and an input that shows it: the proof that the fuzzer finds them.

:mod:`tests.fuzz.test_reverted` runs the recorded inputs. After a change of a generator, this program finds inputs again. It prints the
seeds that show a defect and how often that is:

python -m tests.fuzz.reverted --count 500
python -m tests.fuzz.reverted --defect balance --first 1000 --count 200
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import structlog

from queuectl.domain.reasons import NEVER_FITS
from queuectl.planner import relocate
from queuectl.planner.backfill import timeline
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.heads import ByShare, HeadScheduler
from queuectl.planner.cycle.repair_precedence import Repairs
from queuectl.planner.order.queue_order import StrictFifoHeads
from queuectl.planner.placement import feasible
from queuectl.planner.preempt.returning import Returning
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.search import flavor_choice
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.verify import devices, exits, placement, quota, starts
from queuectl.planner.verify.exits import Case
from queuectl.planner.verify.placement import check_balance
from queuectl.planner.verify.plan_index import PlanIndex
from tests.fuzz.process import handled
from tests.fuzz.snapshots import FEATURED, HOPELESS, LEASED, MISSING, UNFLAVORED, Snapshots

Patch = tuple[Any, str, Any]
"""An object, the name of its attribute, and the value that it had."""


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        what: it does, in words.
        patches: the old behavior.
        seed: of an input that shows it, one that takes little time.
        part: of the stage of snapshots whose input that is.
        cycles: of the larger snapshot, up to the first one that shows it.
    """

    what: str
    patches: tuple[Patch, ...]
    seed: int
    part: str = FEATURED
    cycles: int = 1

    @contextmanager
    def back(self) -> Iterator[None]:
        """The defect is there until the end of the block."""
        with ExitStack() as stack:
            for target, name, value in self.patches:
                stack.enter_context(patch.object(target, name, value))
            yield


# ---- errors of the planner


def _roomiest_of_none(request: GangRequest, free: Any) -> bool:
    """It examines the domain with the most nodes although none exists."""
    for group in request.podset_groups:
        if not group.sliced and not group.on_one_node and group.required != ANYWHERE:
            np.argmax(group.tree.sums(group.required, np.ones(free.shape[1], dtype=np.int64)))
    return _FITS_APART(request, free)


_FITS_APART: Final = feasible.fits_apart


def _set_aside(classes: GangClasses) -> dict[Any, Any]:
    """It takes out all refusals, also of gangs that never fit."""
    proved = {}
    for kind, known in classes._known.items():
        if known.refusal is not None or known.delays is not None:
            proved[kind] = known.refusal, known.delays
            known.refusal = known.delays = None
    return proved


def _forget(classes: GangClasses) -> None:
    classes.reopened += 1
    for known in classes._known.values():
        known.delays = None
        if known.refusal is not None and known.refusal.why[0].code not in NEVER_FITS:
            known.refusal = None


def _key(ranking: ByShare, entrant: Any, entry: Any) -> Any:
    """It ranks a ClusterQueue by the head that it has now."""
    assert entry.ranked.head is not None
    return _KEY(ranking, entrant, entry)


_KEY: Final = ByShare._key


def _claims(pod: Any, node: Any, index: PlanIndex, name: str) -> Any:
    """It reads the first request of each claim."""
    on = index.nodes.get(name)
    return tuple(c for c in pod if on is None or not devices._by_plugin(c.requests[0], node, on))


# ---- plans that the verifier refuses


def _repair(repairs: Repairs) -> None:
    """It repairs gangs that the repair of another one evicts."""
    with patch.object(CycleState, "leaves", lambda _, gang: gang.leaving):
        _REPAIR(repairs)


_REPAIR: Final = Repairs._repair


def _length(request: GangRequest) -> float:
    """A gang that is held for its checks runs from now on."""
    duration = request.pending.workload.duration
    return inf if duration is None else max(duration.seconds, timeline.SOON)


def _all_leases_are_old(index: PlanIndex, claim: Any) -> bool:
    return not claim.now


def _with_balance(index: PlanIndex) -> Iterator[Any]:
    """A planned start has no list of uneven podsets, and is checked for balance."""
    yield from placement.check_gangs(index)
    yield from check_balance(index)


def _all_levels_count(*_: Any) -> bool:
    return True


def _stay(case: Case, gone: Any) -> Iterator[Any]:
    """Gangs that are evicted at the end never counted."""
    return _STAY(case, {*gone, *(e.uid for e in case.index.plan.evicted)})


_STAY: Final = Case._members_that_stay


def _counted_without_those_that_return(case: Case, gone: Any) -> Iterator[Any]:
    """The place of an evicted gang that returns is not kept."""
    for workload, placed in _COUNTED(case, gone):
        gang = case.index.running.get(workload.uid)
        if gang is None or not gang.leaving:
            yield workload, placed


_COUNTED: Final = Case._counted


def _lease_of_any_flavor(cycle: AdmissionCycle, gang: Any, head: Any) -> bool:
    """A gang starts on its lease while a head waits for the flavor of the lease, if it could use another flavor."""
    with patch.object(StrictFifoHeads, "ahead", lambda *_: None):
        return _LEASED(cycle, gang, head)


_LEASED: Final = AdmissionCycle._leased


def _changed(returning: Returning) -> Iterator[Any]:
    """A gang with a reservation yields to none."""
    with patch.object(returning.state, "held", {}):
        yield from list(_CHANGED(returning))


_CHANGED: Final = Returning._changed


def _topologies(index: PlanIndex, flavors: Any, asked: Any) -> list[Any]:
    """Pods without a flavor are judged by all topologies."""
    known = index.snapshot.config.topologies
    return _TOPOLOGIES(index, flavors, asked) if flavors else list(known.values())


_TOPOLOGIES: Final = PlanIndex.topologies_for


DEFECTS: Final[Mapping[str, Defect]] = {
    "no-domain": Defect(
        "A required level that no node has raises an error in the quick test of a placement.",
        ((flavor_choice, "fits_apart", _roomiest_of_none),),
        39,
        MISSING,
    ),
    "no-domain-moves": Defect(
        "A required level that no node has raises an error in the search for moves.",
        ((relocate, "refuted_by_sums", lambda *_: False),),
        29,
        UNFLAVORED,
    ),
    "no-choice": Defect(
        "Once a repair is undone, a gang that has no choice of flavors is searched for, which raises an error.",
        ((GangClasses, "set_aside", _set_aside), (GangClasses, "forget_refusals", _forget)),
        36,
    ),
    "no-head": Defect(
        "Fair sharing ranks a ClusterQueue whose head is being decided, in a Cohort with Backfill, which raises an error.",
        ((ByShare, "_key", _key),),
        99,
    ),
    "no-request": Defect(
        "A claim for devices without requests raises an error in the verifier.",
        ((devices, "_by_claims", _claims),),
        99,
        UNFLAVORED,
    ),
    "repaired-victim": Defect(
        "A gang that lost a node is evicted for the repair of another one, and repaired as well.",
        ((Repairs, "_repair", _repair),),
        2,
    ),
    "repair-that-others-need": Defect(
        "A repair is undone, although a reservation needs the quota that its victim would free.",
        ((Repairs, "_others_stand", lambda *_: True),),
        425412459,
    ),
    "held-for-checks": Defect(
        "Backfill plans a start at the end of a gang that does not run, but is held for its admission checks.",
        ((timeline, "length", _length),),
        179,
        cycles=2,
    ),
    "last-on-budget": Defect(
        "The verifier refuses a gang that gets a lease as the last one on its budget.",
        ((quota, "_had", _all_leases_are_old),),
        109,
        cycles=2,
    ),
    "balance": Defect(
        "The verifier refuses a planned start on domains with unequal numbers of pods.",
        ((starts, "check_gangs", _with_balance),),
        38,
    ),
    "level-removed": Defect(
        "The verifier refuses the repair of a gang whose topology has lost a level since it started.",
        ((PlanIndex, "counts", _all_levels_count),),
        22,
        cycles=2,
    ),
    "evicted-in-the-end": Defect(
        "The verifier judges evictions as if a broken gang that is evicted in the end had never counted.",
        ((exits.Case, "_members_that_stay", _stay),),
        254,
    ),
    "yields-with-reservation": Defect(
        "A gang with a reservation is not among those that make room for a victim that returns.",
        ((Returning, "_changed", _changed),),
        744,
        LEASED,
    ),
    "place-of-returning": Defect(
        "The verifier judges evictions as if no place were kept for evicted gangs that return.",
        ((exits.Case, "_counted", _counted_without_those_that_return),),
        3473,
        LEASED,
    ),
    "passes-on-a-lease": Defect(
        "A gang starts on its lease and passes the head of its StrictFIFO ClusterQueue, which waits for that flavor.",
        (
            (AdmissionCycle, "_leased", _lease_of_any_flavor),
            (AdmissionCycle, "_overtakes", lambda *_: False),
        ),
        2021,
        LEASED,
    ),
    "without-flavor": Defect(
        "The verifier judges the slices of pods without a flavor by a topology whose levels their nodes do not have.",
        ((PlanIndex, "topologies_for", _topologies),),
        30,
        UNFLAVORED,
    ),
    "never-starts": Defect(
        "A gang that never starts delays the gangs behind it in its ClusterQueue.",
        ((HeadScheduler, "_never_starts", lambda *_: False),),
        10,
        HOPELESS,
    ),
}


def found(defect: Defect, seeds: range) -> Iterator[int]:
    """The seeds that show a defect, in its part of the stage."""
    stage = Snapshots((defect.part,))
    for seed in seeds:
        with defect.back():
            shown = handled(stage, seed).defects
        if shown:
            yield seed


def main() -> None:
    """Search inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--defect", choices=list(DEFECTS), help="only this one")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    seeds, missing = range(options.first, options.first + options.count), False
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    for name in [options.defect] if options.defect else list(DEFECTS):
        began = time.process_time()
        those = list(found(DEFECTS[name], seeds))
        took = time.process_time() - began
        print(f"{name}: {len(those)} of {len(seeds)} in {took:.0f} s: {those[:12]}", flush=True)
        missing |= not those
    sys.exit(missing)


if __name__ == "__main__":
    main()
