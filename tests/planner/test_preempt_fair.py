"""Victims by fair shares: the gangs that Kueue's strategies let a gang evict, and the least of all sets that have a fair order.

Shares in the comments are GPUs borrowed of all that the cohort can lend. ``peer``: how many gangs Kueue evicts there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from queuectl.domain.rules import FairStrategy, Rules
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.documents import Doc, cohort, flavor
from tests.planner.generate_cohorts import cohorts
from tests.planner.test_preempt_cohort import Row, agrees_with_brute_force, comes, many, runs, team
from tests.support.examples import examples

FINAL = FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE
INITIAL = FairStrategy.LESS_THAN_INITIAL_SHARE
BOTH = (FINAL, INITIAL)


Parts: TypeAlias = Doc | list[Doc]


def weighed(weight: str) -> Doc:
    return {"fairSharing": {"weight": weight}}


def outcome(
    world: Iterable[Doc | list[Doc]], strategies: tuple[FairStrategy, ...] = BOTH
) -> dict[str, str]:
    """Victim to reason."""
    parts = [flavor(), *world]
    documents = [d for part in parts for d in ([part] if isinstance(part, dict) else part)]
    snapshot = read_snapshot([as_document(d) for d in documents], None).snapshot
    config = replace(snapshot.config, rules=Rules(fair_sharing=strategies))
    snapshot = replace(snapshot, config=config)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    names = {a.workload.uid: a.workload.name for a in snapshot.admitted}
    return {names[p.victim]: p.reason for p in made.preempted}


# Three teams of 4 GPUs and one without any quota; any queue can borrow unused quota.
TEAMS: tuple[Parts, ...] = (team("a", 4), team("b", 4), team("c", 4), team("guest", 0))

ROWS = [
    Row("its own quota is taken back from who borrows most",
        (*TEAMS, *many("b1 b2 b3 b4 b5", "b", 1), *many("c1 c2 c3 c4 c5 c6 c7", "c", 1)), comes("a", 1), ["b1", "c1"], (1, 0)),
    Row("also from one who borrows less, if the one who borrows most has gangs too large for it",
        (*TEAMS, *many("b1 b2 b3 b4 b5", "b", 1), runs("c1", "c", 7)), comes("a", 3), ["c1"], (1, 0)),
    Row("no gang leaves when all stay within their own",
        (*TEAMS, *many("a1 a2", "a", 2, 9), *many("b1 b2", "b", 2), *many("c1 c2", "c", 2)), comes("a", 1), []),
    Row("no gang leaves where it would only reverse the shares",  # guest 4 of 12, a would have 3 over its own, guest then 1
        (*TEAMS, *many("a1 a2 a3 a4", "a", 1, 9), runs("b1", "b", 4), runs("g1", "guest", 4)), comes("a", 4), []),
    Row("a gang that would borrow less than the victim's queue after its exit may evict",
        (*TEAMS, *many("a1 a2 a3 a4", "a", 1, 9), *many("b1 b2", "b", 2), *many("g1 g2 g3 g4", "guest", 1)), comes("a", 1), ["g1"], (1, 0)),
    Row("its own lower gangs go for its own higher ones", (*TEAMS, *many("a1 a2", "a", 4), runs("b1", "b", 4)),
        comes("a", 4, 5), ["a1", "a2"], (1, 0)),
    Row("a large gang leaves if its queue has the larger share until then", (*TEAMS, *many("a1", "a", 4, 9), runs("b1", "b", 8)),
        comes("c", 5), ["b1"], (1, 0)),
    Row("not for one as large", (*TEAMS, runs("b1", "b", 9), runs("c1", "c", 3)), comes("a", 9), []),
    Row("two small gangs do not leave for a large one", (*TEAMS, *many("b1 b2", "b", 5)), comes("a", 9), []),
    Row("a queue is not pushed below its own by a second exit",
        (*TEAMS, runs("a1", "a", 3, 9), runs("b1", "b", 3), runs("b2", "b", 3), runs("c1", "c", 3)), comes("a", 4), []),
    Row("low ones first though they are large", (*TEAMS, runs("b1", "b", 5, 0), runs("b2", "b", 5, 3)), comes("a", 4, 1), ["b1"], (1, 0)),
    Row("higher ones too, under Any", (*TEAMS, runs("b1", "b", 6, 8), runs("b2", "b", 6, 9)), comes("a", 3), ["b1"], (1, 8)),
    Row("a weight counts as so much less",  # a at weight 3: (8 - 4) / 12 / 3 against 4 / 12
        (team("a", 4, **weighed("3")), team("b", 4), team("c", 4), *many("a1", "a", 4, 9), *many("b1 b2 b3 b4 b5 b6 b7 b8", "b", 1)),
        comes("a", 3), ["b1 b2 b3"], (3, 0)),
    Row("at the same weight it gets its fair part only",
        (team("a", 4), team("b", 4), team("c", 4), *many("a1", "a", 4, 9), *many("b1 b2 b3 b4 b5 b6 b7 b8", "b", 1)), comes("a", 3), []),
    Row("all that a queue of weight 0 borrows can be taken", (team("a", 4), team("b", 4), team("z", 0, **weighed("0")),
        *many("a1", "a", 4, 9), runs("z1", "z", 4)), comes("a", 4), ["z1"], (1, 0)),
    Row("but not what is its own", (team("a", 4), team("z", 4, **weighed("0")), *many("a1", "a", 4, 9), runs("z1", "z", 4)), comes("a", 1), []),
    Row("a queue of weight 0 takes its own back", (team("a", 4, **weighed("0")), team("b", 4), *many("b1 b2", "b", 4)), comes("a", 4), ["b1", "b2"], (1, 0)),
    Row("but borrows from no queue that has a weight", (team("a", 0, **weighed("0")), team("b", 4), team("c", 4), *many("b1 b2", "b", 4)), comes("a", 1), []),
    Row("only from another of weight 0", (team("a", 0, **weighed("0")), team("z", 0, **weighed("0")), team("b", 4),
        *many("z1 z2", "z", 2)), comes("a", 1), ["z1", "z2"], (1, 0)),
    Row("no cohort, no shares: within the queue", (team("a", 4, None), runs("a1", "a", 4)), comes("a", 4, 5), ["a1"], (1, 0)),
    Row("shares are compared where the two sides part",  # left uses 0 of its own 4, right 6 of 2
        (cohort("root"), cohort("left", "root"), cohort("right", "root"), team("a", 0, "left"), team("l", 4, "left"),
         team("r", 2, "right"), runs("r1", "r", 3), runs("r2", "r", 3)), comes("a", 3), ["r1", "r2"], (1, 0)),
    Row("a borrower in a cohort that borrows nothing is safe from outside",
        (cohort("root"), cohort("left", "root"), cohort("right", "root"), team("a", 2, "left"), team("l", 0, "left"),
         team("r", 4, "right"), team("s", 0, "right"), runs("s1", "s", 4), runs("l1", "l", 2, 3)), comes("a", 2), ["l1"], (1, 3)),
    Row("deep down it is the cohort on the way that counts",
        (cohort("root"), cohort("left", "root"), cohort("right", "root"), cohort("deep", "right"), team("a", 6, "left"),
         team("d", 0, "deep"), *many("d1 d2", "d", 3)), comes("a", 3), ["d1", "d2"], (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_the_victims_are_not_worse_than_those_of_kueue(row: Row) -> None:
    found = sorted(outcome([*row.world, row.incoming]))
    allowed = [sorted(names.split()) for names in row.victims]
    alike = [_kinds(names) for names in allowed]
    assert (_kinds(found) in alike) if allowed else not found
    if row.peer is not None:
        assert len(found) <= row.peer[0]


def _kinds(names: list[str]) -> list[str]:
    """Gangs of one queue that a row names are interchangeable."""
    return sorted(name[0] for name in names)


# a has used its own 4. b borrows 4 of 12 in one gang; a would borrow 3, and b after the exit nothing.
TABLES_TURNED: Sequence[Parts] = (*TEAMS, runs("a1", "a", 4, 9), runs("b1", "b", 8), comes("a", 3))


@pytest.mark.parametrize(
    ("strategies", "victims"),
    [((FINAL,), set()), ((INITIAL,), {"b1"}), (BOTH, {"b1"})],
    ids=["final share", "initial share", "both"],
)
def test_the_second_strategy_allows_a_victim_that_the_first_protects(
    strategies: tuple[FairStrategy, ...], victims: set[str]
) -> None:
    assert outcome(TABLES_TURNED, strategies).keys() == victims


def test_the_second_strategy_counts_once_for_each_queue() -> None:
    """Two exits of 4 from one queue would do, the second of them only by a share that the first one has spent."""
    world = (*TEAMS, runs("a1", "a", 4, 9), runs("b1", "b", 4), runs("b2", "b", 4), comes("a", 4))
    assert set(outcome(world, BOTH)) <= {"b1", "b2"}
    assert len(outcome(world, BOTH)) <= 1


def test_reasons_state_the_rule_of_each_victim() -> None:
    by_share: Sequence[Parts] = (
        *TEAMS,
        *many("a1 a2 a3 a4", "a", 1, 9),
        *many("b1 b2", "b", 2),
        *many("g1 g2 g3 g4", "guest", 1),
        comes("a", 1),
    )
    assert set(outcome(by_share).values()) == {"InCohortFairSharing"}
    own_quota: Sequence[Parts] = (*TEAMS, *many("b1 b2 b3", "b", 4), comes("a", 4))
    assert set(outcome(own_quota).values()) == {"InCohortReclamation"}
    own_gang: Sequence[Parts] = (team("a", 4, None), runs("a1", "a", 4), comes("a", 4, 5))
    assert set(outcome(own_gang).values()) == {"InClusterQueue"}


def test_an_eviction_by_shares_is_not_reversed() -> None:
    """Each side asks for the quota of the other: after the first exit no eviction for the same gang is legal."""
    before: Sequence[Parts] = (*TEAMS, *many("a1 a2 a3 a4", "a", 1, 9), *many("b1 b2", "b", 2))
    taken = outcome([*before, *many("g1 g2 g3 g4", "guest", 1), comes("a", 1)])
    assert len(taken) == 1
    after = [*before, runs("in", "a", 1), *many("g1 g2 g3", "guest", 1)]
    back = [*after, Doc(comes("guest", 1) | {"metadata": {"name": "g4"}})]
    assert outcome(back) == {}


# Against brute force.


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(4)))
def test_the_victims_are_the_least_of_all_sets_with_a_fair_order(block: int) -> None:
    for seed in range(200 * block, 200 * (block + 1)):
        agrees_with_brute_force(cohorts(seed, fair=True))


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(4)))
def test_the_victims_are_the_least_with_a_fair_order_where_nodes_are_short_too(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        agrees_with_brute_force(cohorts(seed, fair=True, nodes=True))


def test_a_gang_that_would_return_does_not_keep_an_equal_one_from_leaving() -> None:
    """A set is illegal only because of the gangs that would return: the cut must not exclude others of the same size."""
    agrees_with_brute_force(cohorts(1530, fair=True, gangs=9))
