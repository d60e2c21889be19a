"""Of more shapes than a plan can consider, each is considered in a known number of plans, and a LocalQueue with few of them in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.plan import Refusal
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueingStrategy, ResourceFlavor
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import CapacityLease, PastUse, Pending, Snapshot
from queuectl.domain.workload import Placement
from queuectl.planner import plan
from queuectl.planner.order.queue_order import Place, behind, place
from queuectl.state.pending_window import (
    FEWEST,
    LEAST,
    MOST,
    PLAN_SECONDS,
    PendingWindow,
    _always,
    _shape,
)
from tests.planner import build


def gang(name: str, queue: str, cpu: int, at: float = 0.0, priority: int = 0) -> Pending:
    shape = build.podset("w", 2, gpu=8, cpu=cpu)
    return Pending(build.gang(name, shape, queue=queue, queued_at=at, priority=priority))


def world(pending: Sequence[Pending], *, strict: bool = False) -> Snapshot:
    strategy = QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
    names = sorted({p.workload.queue or "" for p in pending})
    return build.world([], pending, (), *(build.queue(name, strategy=strategy) for name in names))


def flood(count: int, queue: str = "busy") -> list[Pending]:
    """Gangs of different shapes, the oldest first."""
    return [gang(f"{queue}{n:05}", queue, 1000 + n, at=float(n)) for n in range(count)]


def names(snapshot: Snapshot) -> list[str]:
    return [p.workload.uid for p in snapshot.pending]


def test_few_shapes_are_all_considered_however_many_gangs_have_them() -> None:
    snapshot = world([gang(f"g{n}", "main", n % 10, at=float(n)) for n in range(500)])
    window = PendingWindow(shapes=64)
    assert window.applied(snapshot) is snapshot
    assert not window.partial


def test_a_local_queue_with_few_shapes_is_considered_whole_in_each_plan() -> None:
    few = flood(5, "quiet")
    snapshot = world([*flood(1000), *few])
    window = PendingWindow(shapes=64)
    for _ in range(40):
        kept = set(names(window.applied(snapshot)))
        assert {p.workload.uid for p in few} <= kept
        assert len(kept) <= 64 + 5
        assert window.partial


def test_the_head_of_each_queue_is_considered_in_each_plan() -> None:
    snapshot = world([*flood(1000), gang("urgent", "busy", 5, at=9999.0, priority=10)])
    window = PendingWindow(shapes=64)
    for _ in range(10):
        kept = names(window.applied(snapshot))
        assert "urgent" in kept
        assert {f"busy{n:05}" for n in range(31)} <= set(kept)


def test_the_oldest_gang_of_a_shape_gives_its_place() -> None:
    window, gangs = PendingWindow(shapes=64), flood(1000)
    later = gang("later", "busy", 1000, at=9999.0)
    for _ in range(2):
        assert {"busy00000", "later"} <= set(names(window.applied(world([*gangs, later]))))


def test_shapes_that_no_longer_wait_are_not_kept() -> None:
    window = PendingWindow(shapes=64)
    first = names(window.applied(world(flood(100))))
    for queue in ("other", "third"):
        window.applied(world(flood(100, queue)))
    assert len(window._numbers) == len(window._counted) == 100
    assert {queue for _, queue in window._places} == {"third"}
    assert names(window.applied(world(flood(100)))) == first


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.integers(32, 128),
    st.lists(st.integers(0, 40), max_size=60),
)
def test_each_shape_is_considered_within_the_stated_number_of_plans(
    sizes: list[int], shapes: int, arrivals: list[int]
) -> None:
    """Even while gangs are created and deleted."""
    gangs = [one for n, size in enumerate(sizes) for one in flood(size, f"q{n}")]
    window = PendingWindow(shapes=shapes)
    skipped = dict.fromkeys((g.workload.uid for g in gangs), 0)
    part = max(LEAST, shapes // len(sizes))
    limit = 4 * (max(sizes) + len(arrivals) * 40) // part + 2
    for number, more in enumerate([*arrivals, *([0] * (limit + 1))]):
        gangs += [gang(f"new{number}-{n}", "q0", 10**6 + number * 50 + n, 1e6) for n in range(more)]
        kept = set(names(window.applied(world(gangs))))
        for uid in skipped:
            skipped[uid] = 0 if uid in kept else skipped[uid] + 1
    assert max(skipped.values()) <= limit


@pytest.mark.parametrize("strict", [False, True])
def test_without_a_change_planning_ends_when_each_shape_has_been_considered(strict: bool) -> None:
    snapshot = world([*flood(1000), *flood(100, "second")], strict=strict)
    window = PendingWindow(shapes=64)
    plans = list(until_all_are_considered(window, snapshot))
    assert len({uid for kept in plans for uid in kept}) == (64 if strict else 1100)
    assert len(plans) <= 1 + 2 * 1000 // 32
    window.applied(snapshot, changed=True)
    assert window.partial is not strict


def until_all_are_considered(window: PendingWindow, snapshot: Snapshot) -> Iterator[list[str]]:
    """The gangs of a plan after a change, and of the plans for the rest."""
    yield names(window.applied(snapshot))
    while window.partial:
        yield names(window.applied(snapshot, changed=False))


def test_a_gang_that_arrives_is_considered_before_planning_ends() -> None:
    gangs, window = flood(200), PendingWindow(shapes=64)
    for _ in range(2):
        plans = list(until_all_are_considered(window, world(gangs)))
        assert {g.workload.uid for g in gangs} == {uid for kept in plans for uid in kept}
        gangs.append(gang("last", "busy", 5, at=1e6))


def test_the_number_of_shapes_follows_the_time_of_a_plan() -> None:
    snapshot, window = world(flood(3000)), PendingWindow(shapes=128)

    def considered(seconds: float) -> int:
        for _ in range(20):
            window.took(seconds)
        return len(window.applied(snapshot).pending)

    assert considered(10 * PLAN_SECONDS) == FEWEST
    assert considered(PLAN_SECONDS) == FEWEST
    assert considered(PLAN_SECONDS / 10) == MOST


def test_a_strict_queue_considers_a_prefix_of_its_order() -> None:
    gangs = flood(1000)
    kept = names(PendingWindow(shapes=64).applied(world(gangs, strict=True)))
    assert kept == [f"busy{n:05}" for n in range(64)]


class CountedAgain(PendingWindow):
    """The same window, which counts all gangs in each plan."""

    def applied(self, snapshot: Snapshot, *, changed: bool = True) -> Snapshot:
        assert changed
        self.partial = False
        if len(snapshot.pending) <= self._shapes:
            return snapshot
        shapes, numbers = [_shape(p) for p in snapshot.pending], self._numbers
        for shape in shapes:
            if shape not in numbers:
                self._last_number += 1
                numbers[shape] = self._last_number
        self._numbers = {shape: numbers[shape] for shape in shapes}
        by_queue: dict[tuple[str, str | None], dict[int, Place]] = {}
        for pending, shape in zip(snapshot.pending, shapes, strict=True):
            if not _always(pending):
                workload = pending.workload
                places = by_queue.setdefault((workload.namespace, workload.queue), {})
                known = places.get(numbers[shape], place(workload))
                places[numbers[shape]] = min(known, place(workload))
        if sum(map(len, by_queue.values())) <= self._shapes:
            return snapshot
        kept, _ = self._kept(by_queue, snapshot)
        self.partial = any(kept[queue] != set(shapes) for queue, shapes in by_queue.items())
        considered = [
            pending
            for pending, shape in zip(snapshot.pending, shapes, strict=True)
            if _always(pending)
            or pending.workload.uid in self._pinned
            or numbers[shape] in kept[pending.workload.namespace, pending.workload.queue]
        ]
        return replace(snapshot, pending=tuple(considered))


CHANGES = st.tuples(
    st.sampled_from(["arrive", "leave", "again", "lease", "block", "pin", "raise"]),
    st.integers(0, 400),
    st.integers(1, 30),
)


@given(st.lists(st.lists(CHANGES, max_size=4), min_size=1, max_size=8), st.integers(16, 48))
def test_a_window_that_counts_changes_only_is_the_window_that_counts_all(
    plans: list[list[tuple[str, int, int]]], shapes: int
) -> None:
    gangs = [*flood(40, "q0"), *flood(20, "q1")]
    kept, fresh = PendingWindow(shapes), CountedAgain(shapes)
    for number, changes in enumerate(plans):
        for what, where, count in changes:
            at = where % len(gangs) if gangs else 0
            # Some of the shapes that arrive wait already, in the same queue or another one.
            if what == "arrive":
                more = [
                    gang(f"new{number}-{at}-{n}", f"q{n % 3}", 1000 + at + n, at=float(at))
                    for n in range(count)
                ]
                gangs += [
                    one for one in more if one.workload.uid not in {g.workload.uid for g in gangs}
                ]
            elif what == "leave":
                del gangs[at : at + count]
            elif what == "pin" and gangs:
                kept.pin(gangs[at].workload.uid)
                fresh.pin(gangs[at].workload.uid)
            elif gangs:
                change: dict[str, dict[str, Any]] = {
                    "again": {},  # an equal object instead of the last one
                    "lease": {"lease": None if gangs[at].lease else LEASE},
                    "block": {"blocked": None if gangs[at].blocked else BLOCKED},
                    "raise": {"workload": replace(gangs[at].workload, priority=count)},
                }
                gangs[at] = replace(gangs[at], **change[what])
        snapshot = world(gangs)
        assert names(kept.applied(snapshot)) == names(fresh.applied(snapshot))
        assert kept.partial is fresh.partial


BLOCKED = Reason(Code.MISCONFIGURED, "no queue")
LEASE = CapacityLease(Placement(()), (), 0.0, 1e9)


@pytest.mark.parametrize("changes", [{"lease": LEASE}, {"blocked": BLOCKED}])
def test_a_gang_that_keeps_a_place_or_costs_no_search_is_in_each_plan(
    changes: dict[str, object],
) -> None:
    gangs = flood(1000)
    gangs[700] = replace(gangs[700], **changes)  # type: ignore[arg-type]
    window = PendingWindow(shapes=64)
    for _ in range(20):
        assert "busy00700" in names(window.applied(world(gangs)))


def test_a_gang_that_a_user_asks_for_is_considered() -> None:
    window = PendingWindow(shapes=64)
    window.pin("busy00999")
    for _ in range(20):
        assert "busy00999" in names(window.applied(world(flood(1000))))


def refused(**codes: Code) -> list[Refusal]:
    """By uid, the main reason."""
    return [Refusal(uid, (Reason(code, "why"),)) for uid, code in codes.items()]


def test_each_gang_that_the_limit_of_a_cycle_leaves_out_has_one_answer_after_a_change() -> None:
    snapshot = world([gang(name, "main", 1) for name in "abc"])
    window = PendingWindow()
    later, no = Code.PENDING_EVALUATION, Code.WAITING_FOR_QUOTA
    plans = [
        (True, {"a": no, "b": later, "c": later}, True),
        (False, {"a": later, "b": no, "c": later}, True),
        (False, {"a": no, "b": later, "c": later}, True),
        (False, {"a": later, "b": later, "c": no}, False),
        (False, {"a": no, "b": later, "c": later}, False),
        (True, {"a": no, "b": later, "c": no}, True),
        (True, {"a": no, "b": no, "c": no}, False),
    ]
    for changed, answers, partial in plans:
        window.applied(snapshot, changed=changed)
        window.answered(refused(**answers))
        assert window.partial == partial, answers


def test_a_gang_that_both_limits_leave_out_has_an_answer_too() -> None:
    snapshot = world(flood(200))
    window, answered, changed = PendingWindow(shapes=64), set[str](), True
    for number in range(40):
        planned = names(window.applied(snapshot, changed=changed))
        later = planned[48:] if number == 0 else []
        answers = dict.fromkeys(planned, Code.UNDECIDED) | dict.fromkeys(
            later, Code.PENDING_EVALUATION
        )
        window.answered(refused(**answers))
        answered |= set(planned) - set(later)
        changed = False
        if not window.partial:
            break
    assert len(answered) == 200
    assert number < 16


def test_a_gang_that_was_left_out_and_is_deleted_needs_no_answer() -> None:
    gangs = [gang(name, "main", 1) for name in "ab"]
    window = PendingWindow()
    window.applied(world(gangs))
    window.answered(refused(a=Code.WAITING_FOR_QUOTA, b=Code.PENDING_EVALUATION))
    assert window.partial
    window.applied(world(gangs[:1]), changed=False)
    window.answered(refused(a=Code.WAITING_FOR_QUOTA))
    assert not window.partial


def decided_by_window(snapshot: Snapshot, shapes: int = 64) -> list[str]:
    """The gangs that start in the plans after a change, until each gang has an answer or one starts."""
    window, changed = PendingWindow(shapes), True
    while True:
        made = plan(window.applied(snapshot, changed=changed))
        window.answered(made.pending)
        if made.admitted or not window.partial:
            return [admission.uid for admission in made.admitted]
        changed = False


def many(count: int = 200, **changes: Any) -> list[Pending]:
    """Gangs of different shapes, the oldest first."""
    return [
        Pending(
            build.gang(f"busy{n:03}", build.podset(gpu=8, cpu=n + 1, **changes), queued_at=float(n))
        )
        for n in range(count)
    ]


def of_user(gangs: list[Pending], user: str) -> list[Pending]:
    return [replace(one, workload=replace(one.workload, user=user)) for one in gangs]


STRICT = build.queue(strategy=QueueingStrategy.STRICT_FIFO)
LAST = Pending(build.gang("last", build.podset(gpu=8), queued_at=1000.0))
ON_B = Pending(build.gang("last", build.podset(gpu=8, select={"model": "b"}), queued_at=1000.0))


def never_fit() -> Snapshot:
    wide = [
        Pending(build.gang(f"wide{n:03}", build.podset(count=9 + n, gpu=8), queued_at=float(n)))
        for n in range(200)
    ]
    return build.world([build.node("n0", gpu=8)], [*wide, LAST], (), STRICT)


def at_a_limit() -> Snapshot:
    runs = build.gang("runs", build.podset(gpu=8))
    gangs = [*of_user(many(), "ann"), *of_user([LAST], "ben")]
    running = build.holding(replace(runs, user="ann"), {"n0": 1})
    nodes = [build.node(f"n{n}", gpu=8, cpu=10**6) for n in range(2)]
    capped = replace(STRICT, max_per_user=((GPU, 8),))
    return build.world(nodes, gangs, [running], capped)


def on_another_flavor() -> Snapshot:
    flavors = [ResourceFlavor(name, (("model", name),), topology="gpus") for name in "ab"]
    queue = build.queue(strategy=QueueingStrategy.STRICT_FIFO, flavors=("a", "b"))
    nodes = [build.node(f"{m}0", gpu=8, cpu=10**6, labels={"model": m}) for m in "ab"]
    waiting = [
        Pending(
            build.gang(
                f"wide{n:03}", build.podset(count=2, gpu=8, cpu=n + 1, select={"model": "a"}), queued_at=float(n)
            )
        )
        for n in range(200)
    ]  # fmt: skip
    return build.world(nodes, [*waiting, ON_B], (), queue, flavors=flavors)


@pytest.mark.parametrize("case", [never_fit, at_a_limit, on_another_flavor])
def test_heads_that_do_not_hold_back_later_gangs_do_not_keep_a_strict_queue_from_the_gangs_behind_them(
    case: Callable[[], Snapshot],
) -> None:
    snapshot = case()
    assert [admission.uid for admission in plan(snapshot).admitted] == ["last"]
    assert decided_by_window(snapshot) == ["last"]


def test_a_strict_queue_whose_head_holds_back_the_others_is_planned_once() -> None:
    runs = build.holding(build.gang("runs", build.podset(gpu=8)), {"n0": 1})
    snapshot = build.world([build.node("n0", gpu=8, cpu=10**6)], many(), [runs], STRICT)
    window = PendingWindow(shapes=64)
    window.answered(plan(window.applied(snapshot)).pending)
    assert not window.partial


@pytest.mark.parametrize("strict", [False, True])
def test_the_order_by_past_use_counts(strict: bool) -> None:
    strategy = QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
    queue = replace(build.queue(strategy=strategy), usage_fairness=True)
    gangs = [*of_user(many(), "ann"), *of_user([LAST], "ben")]
    snapshot = build.world([build.node("n0", gpu=8, cpu=10**6)], gangs, (), queue)
    rules = replace(snapshot.config.rules, usage_fairness=UsageFairness(3600.0, 300.0))
    snapshot = replace(
        snapshot,
        config=replace(snapshot.config, rules=rules),
        past_use=PastUse(users={"ann": 1e6}),
    )
    assert [admission.uid for admission in plan(snapshot).admitted] == ["last"]
    assert decided_by_window(snapshot) == ["last"]


# ---- StrictFIFO


def test_a_gang_does_not_pass_those_before_it_because_of_its_shape_or_a_question() -> None:
    snapshot = world([*flood(200), gang("late", "busy", 1000, at=9999.0)], strict=True)
    window = PendingWindow(shapes=64)
    window.pin("busy00199")
    assert names(window.applied(snapshot)) == [f"busy{n:05}" for n in range(64)]


@given(
    st.lists(
        st.sampled_from(["wide", "ann", "ben", "a", "b", "both", "small"]), min_size=40, max_size=70
    ),
    st.integers(0, 2),
    st.booleans(),
)
def test_the_plans_of_a_window_start_only_gangs_that_a_plan_of_all_gangs_starts(
    kinds: list[str], free: int, repeated: bool
) -> None:
    """And they start some if that one does."""
    flavors = [ResourceFlavor(name, (("model", name),), topology="gpus") for name in "ab"]
    queue = build.queue(strategy=QueueingStrategy.STRICT_FIFO, flavors=("a", "b"))
    nodes = [build.node(f"n{n}", gpu=8, cpu=10**6, labels={"model": "ab"[n % 2]}) for n in range(4)]
    running = [
        build.holding(replace(build.gang(f"r{n}", build.podset(gpu=8)), user="ann"), {f"n{n}": 1})
        for n in range(4 - free)
    ]

    def waiting(number: int, kind: str) -> Pending:
        cpu = 1 + (number // 2 if repeated else number)
        changes: dict[str, Any] = {"select": {"model": kind}} if kind in "ab" else {}
        count, gpu = {"wide": (9, 8), "small": (1, 0)}.get(kind, (1, 8))
        podsets = [build.podset(count=count, gpu=gpu, cpu=cpu, **changes)]
        if kind == "both":
            podsets = [build.podset(m, gpu=8, cpu=cpu, select={"model": m}) for m in "ab"]
        one = build.gang(f"g{number:02}", *podsets, queued_at=float(number))
        return Pending(replace(one, user=kind if kind in ("ann", "ben") else None))

    gangs = [waiting(number, kind) for number, kind in enumerate(kinds)]
    capped = replace(queue, max_per_user=((GPU, 8 * (4 - free)),))
    snapshot = build.world(nodes, gangs, running, capped, flavors=flavors)
    started = {admission.uid for admission in plan(snapshot).admitted}
    found = set(decided_by_window(snapshot, shapes=16))
    assert found <= started
    assert bool(found) is bool(started)


def test_gangs_that_never_fit_of_another_local_queue_do_not_keep_a_gang_from_being_considered() -> (
    None
):
    """However many shapes they have."""
    never = [
        Pending(build.gang(f"wide{n:04}", build.podset(count=9 + n, gpu=8), queued_at=float(n)))
        for n in range(MOST + 40)
    ]
    snapshot = build.world([build.node("n0", gpu=8)], [*never, LAST], (), STRICT)
    window, changed = PendingWindow(shapes=FEWEST), True
    for _ in range(100):
        considered = window.applied(snapshot, changed=changed)
        if "last" in names(considered):
            break
        refused = [
            Refusal(p.workload.uid, (Reason(Code.SHAPE_NEVER_FITS, "too large"),))
            for p in considered.pending
        ]
        window.answered(refused)
        assert window.partial
        changed = False
    assert "last" in names(considered)


def test_strict_queues_share_the_limit_of_a_plan_and_follow_its_time() -> None:
    gangs = [one for name in ("a", "b", "c") for one in flood(1100, name)]
    snapshot = world([*gangs, *flood(200, "d")], strict=True)
    window = PendingWindow(shapes=FEWEST)

    def planned(seconds: float) -> int:
        considered = names(window.applied(snapshot))
        window.took(seconds)
        window.answered(refused(**dict.fromkeys(considered, Code.UNDECIDED)))
        return len(considered)

    most = [planned(PLAN_SECONDS / 2) for _ in range(200)][-1]
    assert MOST - 4 * LEAST <= most <= MOST + FEWEST
    assert [planned(10 * PLAN_SECONDS) for _ in range(20)][-1] <= max(2 * FEWEST, 4 * LEAST)


def test_a_strict_queue_gets_what_the_others_do_not_need() -> None:
    small = [gang(f"s{n}-{k}", f"small{n}", k) for n in range(70) for k in range(2)]
    snapshot = world([*small, *flood(200)], strict=True)
    window = PendingWindow(shapes=FEWEST)
    for _ in range(20):
        considered = names(window.applied(snapshot))
        window.answered(refused(**dict.fromkeys(considered, Code.SHAPE_NEVER_FITS)))
    assert "busy00199" in considered


@pytest.mark.parametrize("change", [1e6, -1e6], ids=["past use grows", "past use decays"])
def test_past_use_that_changes_between_plans_for_the_rest_leaves_out_no_gang(change: float) -> None:
    queue = replace(STRICT, usage_fairness=True)
    wide = [
        Pending(build.gang(f"w{n:03}", build.podset(count=9 + n, gpu=8), queued_at=float(n)))
        for n in range(100)
    ]
    snapshot = build.world([build.node("n0", gpu=8)], of_user([*wide, LAST], "ann"), (), queue)
    rules = replace(snapshot.config.rules, usage_fairness=UsageFairness(3600.0, 300.0))
    snapshot = replace(snapshot, config=replace(snapshot.config, rules=rules))
    window, changed = PendingWindow(shapes=16), True
    for number in range(12):
        use = PastUse(users={"ann": 1e8 + number * change})
        made = plan(window.applied(replace(snapshot, past_use=use), changed=changed))
        window.answered(made.pending)
        changed = False
        if made.admitted:
            break
    assert [admission.uid for admission in made.admitted] == ["last"]


def test_a_head_that_a_plan_for_the_rest_leaves_out_does_not_begin_it_again() -> None:
    snapshot = world(flood(200), strict=True)
    window, changed, head = PendingWindow(shapes=16), True, "busy00000"
    for number in range(40):
        considered = names(window.applied(snapshot, changed=changed))
        codes = dict.fromkeys(considered, Code.SHAPE_NEVER_FITS)
        codes[head] = Code.PENDING_EVALUATION if number % 2 else Code.UNDECIDED
        window.answered(refused(**codes))
        assert head in considered
        changed = False
        if not window.partial:
            break
    assert number < 20


@pytest.mark.parametrize("shapes", [4, 64], ids=["in parts", "whole"])
def test_gangs_behind_one_that_a_plan_has_left_out_have_an_answer_too(shapes: int) -> None:
    snapshot = world([gang(name, "main", n) for n, name in enumerate("abc")], strict=True)
    window = PendingWindow(shapes)
    never, later = Reason(Code.SHAPE_NEVER_FITS, "no"), Reason(Code.PENDING_EVALUATION, "later")

    def answers(**reasons: Reason) -> list[Refusal]:
        return [Refusal(uid, (reason,)) for uid, reason in reasons.items()]

    window.applied(snapshot)
    window.answered(answers(a=later, b=behind("team/a"), c=behind("team/a")))
    assert window.partial
    window.applied(snapshot, changed=False)
    window.answered(answers(a=never, b=later, c=behind("team/b")))
    assert window.partial, "b has no answer"
    window.applied(snapshot, changed=False)
    window.answered(answers(a=never, b=Reason(Code.UNDECIDED, "?"), c=behind("team/b")))
    assert not window.partial


@pytest.mark.parametrize("strict", [False, True])
def test_a_gang_that_is_left_out_and_then_set_aside_needs_no_answer(strict: bool) -> None:
    snapshot = world([gang(name, "main", n) for n, name in enumerate("ab")], strict=strict)
    window = PendingWindow()
    window.applied(snapshot)
    window.answered(refused(a=Code.PENDING_EVALUATION, b=Code.WAITING_FOR_QUOTA))
    assert window.partial
    window.applied(snapshot, changed=False)
    window.answered(refused(b=Code.WAITING_FOR_QUOTA), {"a"})
    assert not window.partial


def test_a_strict_queue_is_planned_for_the_rest_until_its_end_and_no_longer() -> None:
    """Even if the limit of a cycle leaves out most of its gangs each time."""
    snapshot = world(flood(600), strict=True)
    window, answered = PendingWindow(shapes=64), set[str]()
    for number in range(100):
        considered = names(window.applied(snapshot, changed=number == 0))
        new = [uid for uid in considered if uid not in answered][:8]
        answered.update(new)
        later = set(considered) - answered
        codes = {
            uid: Code.PENDING_EVALUATION if uid in later else Code.UNDECIDED for uid in considered
        }
        window.answered(refused(**codes))
        if not window.partial:
            break
    assert len(answered) == 600
    assert number < 99
