"""A slice of the corpus still gives the recorded plans, and the check notices when a plan differs or gets worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import StopSignal, plan
from tests.corpus.answers import Planner, answer
from tests.corpus.check import Checked, Pair, check, check_verified, main, pairs, report
from tests.corpus.compare import compare_scores, differences
from tests.corpus.files import (
    DATA,
    Entry,
    Recorded,
    read_recorded,
    write_entries,
    write_recorded,
)
from tests.corpus.record import Outcome, attempt, report_failures

MOST_BYTES: Final = 8_000_000  # of the files in the repository
EVERY: Final = 50  # of the small snapshots, those that are planned here
SMALL: Final = 30_000  # bytes
LEAST: Final = 20  # snapshots of each feature
LEAST_RARE: Final = 5
FEATURES: Final = """
    cohorts|cohort trees|fair sharing|past use|StrictFIFO|flavors|fungibility|split flavors|splits|maxPerUser|ResourceQuota|
    topology of 3 levels|topology of 5 levels|topology Required|topology Preferred|slices|slices of several layers|balanced|
    groups|several podsets|partial admission|starts smaller|preemption|preempts to borrow|evicts within nominal|protection|
    opt-out|repairs|lost pods|evicted|defragmentation|moves|returning|make room|leases|standing leases|leaving gangs|
    idle reclaim|idle reclaim, dry run|spared|borrow back-off|reclaim wait|quota only|unmanaged pods|excluded nodes|many pending|
    500 nodes and more|short search|moved gangs|
    eviction InClusterQueue|eviction InCohortReclamation|eviction InCohortReclaimWhileBorrowing|
    eviction InCohortFairSharing|eviction InCohortRoom|eviction IdleReclaim
"""
Change = Callable[[Plan], Plan]


@cache
def small() -> Sequence[Pair]:
    """A slice of those of the tests, the documentation and the generators."""
    before = takewhile(lambda pair: pair[0].source != "benchmarks", pairs())
    plain = (pair for pair in before if len(pair[0].content) < SMALL)
    return tuple(islice(plain, 0, None, EVERY))


def test_a_slice_gives_the_recorded_plans_and_diagnoses() -> None:
    checked = [check(pair, score=False) for pair in small()]
    assert len(checked) > 100
    assert report(checked, score=False) == 0


def test_every_rule_of_the_planner_is_in_the_corpus() -> None:
    counted = Counter(feature for one in read_recorded() for feature in one.features)
    asked = [name.strip() for name in FEATURES.replace("\n", " ").split("|")]
    assert {name: counted[name] for name in asked if counted[name] < LEAST} == {}
    assert min(counted["proof feasible"], counted["uneven"]) >= LEAST_RARE


def test_the_files_are_small() -> None:
    assert sum(file.stat().st_size for file in DATA.iterdir()) < MOST_BYTES


# That the check can fail.


def first(holds: Callable[[Plan, Recorded], bool]) -> Pair:
    return next(pair for pair in small() if holds(plan(pair[0].snapshot()), pair[1]))


def changed(pair: Pair, change: Change, *, score: bool) -> Checked:
    def planner(snapshot: Snapshot, stop: StopSignal) -> Plan:
        return change(plan(snapshot, stop))

    return check(pair, score=score, planner=planner)


def starts(made: Plan, _: Recorded) -> bool:
    return any(len(a.placement.podsets[0].nodes) > 0 for a in made.admitted)


def evicts(made: Plan, _: Recorded) -> bool:
    return bool(made.preempted)


def waits(made: Plan, _: Recorded) -> bool:
    return any(r.proof is Proof.OPTIMAL for r in made.pending)


def without_the_first(made: Plan) -> Plan:
    return replace(made, admitted=made.admitted[1:])


def on_another_node(made: Plan) -> Plan:
    """One more node, which no topology knows: more domains."""
    head, *rest = made.admitted
    podset, *others = head.placement.podsets
    more = replace(podset, nodes=(*podset.nodes, ("elsewhere", 1)))
    return replace(made, admitted=(replace(head, placement=replace(head.placement, podsets=(more, *others))), *rest))  # fmt: skip


def dearer(made: Plan) -> Plan:
    head, *rest = made.preempted
    cost = replace(head.cost, priority=head.cost.priority + 1, lost_work=head.cost.lost_work + 1)
    return replace(made, preempted=(replace(head, cost=cost), *rest))


def for_another_reason(made: Plan) -> Plan:
    head, *rest = made.pending
    reason = replace(head.reasons[0], code=Code.UNDECIDED)
    return replace(made, pending=(replace(head, reasons=(reason, *head.reasons[1:])), *rest))


def less_proved(made: Plan) -> Plan:
    pending = tuple(replace(r, proof=Proof.UNDECIDED) for r in made.pending)
    return replace(made, pending=pending)


def in_other_words(made: Plan) -> Plan:
    head, *rest = made.pending
    reason = replace(head.reasons[0], message="other words")
    return replace(made, pending=(replace(head, reasons=(reason, *head.reasons[1:])), *rest))


def with_more_work(made: Plan) -> Plan:
    return replace(made, stats={**made.stats, "solves": made.stats["solves"] + 1})


@pytest.mark.parametrize(
    ("which", "change", "line", "worse"),
    [
        (starts, without_the_first, "admitted[", True),
        (starts, on_another_node, ".nodes: ", True),
        (evicts, dearer, ".cost.lost_work: ", True),
        (waits, for_another_reason, ".code: ", True),
        (waits, less_proved, ".proof: optimal → undecided", True),
        (waits, in_other_words, ".message: ", False),
        (waits, with_more_work, "stats.solves: ", False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_plan_that_differs_is_found_and_one_that_is_worse_at_either_strength(
    which: Callable[[Plan, Recorded], bool],
    change: Change,
    line: str,
    worse: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = first(which)
    exact = changed(pair, change, score=False)
    assert report([exact], score=False, lines=99) == 1
    assert line in capsys.readouterr().out
    assert exact.work_alone is (change is with_more_work)
    scored = changed(pair, change, score=True)
    assert scored.worse is worse
    assert report([scored], score=True) == int(worse)
    assert ("worse: " in capsys.readouterr().out) is worse


def test_fewer_domains_cheaper_victims_and_better_proofs_differ_and_are_not_worse() -> None:
    stands = {"pods": {"w": 4}, "repaired": False, "proof": "feasible"}
    nothing: dict[str, Any] = {
        part: {} for part in ("pending", "leases", "spared", "moves", "evicted")
    }
    nothing |= {"returning": [], "uneven": [], "alarms": 0, "cut": False, "proof": "feasible"}
    was = nothing | {
        "admitted": {"a": stands | {"domains": {"rack": 2}}, "b": stands | {"domains": {"rack": 2}}},
        "victims": {"w": {"layers": [3, 70, 2], "reasons": ["x"], "proof": "feasible"}},
    }  # fmt: skip
    better = nothing | {
        "admitted": {"a": stands | {"domains": {"rack": 3}}, "b": stands | {"domains": {"rack": 1}}},
        "victims": {"w": {"layers": [2, 90, 9], "reasons": ["x"], "proof": "optimal"}},
    }  # fmt: skip
    there, back = list(compare_scores(was, better)), list(compare_scores(better, was))
    assert [d.where for d in there] == [
        "admitted[a].domains",
        "admitted[b].domains",
        "victims for w: layers",
        "victims for w: proof",
    ]
    assert not any(d.worse for d in there)
    assert [d.where for d in back if d.worse] == ["victims for w: layers", "victims for w: proof"]


def test_a_difference_names_the_gang_and_the_field() -> None:
    was = {"admitted": [{"uid": "a", "proof": "optimal"}, {"uid": "b", "proof": "optimal"}]}
    now = {"admitted": [{"uid": "b", "proof": "feasible"}, {"uid": "a", "proof": "optimal"}]}
    assert [str(d) for d in differences(was, now)] == [
        "admitted[b].proof: optimal → feasible",
        "admitted (order): ['a', 'b'] → ['b', 'a']",
    ]


@pytest.mark.parametrize("options", [[], ["--score"]], ids=["byte for byte", "score"])
def test_the_command_fails_when_a_recorded_plan_is_no_longer_made(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    entry, recorded = first(starts)
    score = recorded.score | {"admitted": {}}
    wrong = replace(recorded, digest="", plan=recorded.plan | {"admitted": []}, score=score)
    write_entries([entry], tmp_path)
    for written, code in ((recorded, 0), (wrong, 1)):
        write_recorded([written], tmp_path)
        assert main(["--data", str(tmp_path), "--processes", "1", *options]) == code
        assert (entry.key in capsys.readouterr().out) is bool(code)


# Snapshots that cannot be planned, and refused plans.


def raises(_: Snapshot, __: StopSignal) -> Plan:
    raise IndexError("no domain")


def twice_on_one_node(snapshot: Snapshot, stop: StopSignal) -> Plan:
    """Its first gang starts with twice its pods."""
    made = plan(snapshot, stop)
    head, *rest = made.admitted
    podset, *others = head.placement.podsets
    more = replace(podset, nodes=tuple((name, 2 * count) for name, count in podset.nodes))
    return replace(made, admitted=(replace(head, placement=replace(head.placement, podsets=(more, *others))), *rest))  # fmt: skip


@pytest.mark.parametrize(
    ("planner", "why"),
    [
        (raises, "raises IndexError: no domain (test_corpus.py:"),
        (twice_on_one_node, "the verifier refuses its plan: Whole "),
    ],
    ids=["exception", "refused"],
)
def test_the_check_and_the_recording_fail_on_a_plan_that_is_not_made_or_is_refused_and_name_its_snapshot(
    planner: Planner, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = first(starts)

    def answered(entry: Entry, *, seconds: float = 600.0) -> Recorded:
        return answer(entry, seconds=seconds, planner=planner)

    monkeypatch.setattr("tests.corpus.check.answer", answered)
    monkeypatch.setattr("tests.corpus.record.answer", answered)
    assert report([check_verified(pair, score=True)], score=True) == 1
    printed = capsys.readouterr().out
    assert f"worse: {pair[0].key}\n" in printed
    assert why in printed
    outcome = attempt(pair[0])
    assert outcome.recorded is None
    assert report_failures([(pair[0], outcome)], collect=True) == 1
    printed = capsys.readouterr().out
    assert f"cannot be recorded: {pair[0].key}: {why}" in printed


def test_a_snapshot_that_takes_too_long_is_left_out_of_a_collection_and_never_of_the_corpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry, recorded = small()[0]
    slow = [(entry, Outcome(None, left_out="takes more than 20 s")), (entry, Outcome(recorded))]
    assert report_failures(slow, collect=True) == 0
    assert capsys.readouterr().out == ""
    assert report_failures(slow, collect=False) == 1
    assert f"{entry.key}: takes more than 20 s" in capsys.readouterr().out
