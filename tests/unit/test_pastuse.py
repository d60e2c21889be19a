"""Past use: it halves in each half-life, adds up, does not depend on the times of samples, and survives a restart."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.accounting import AccountingTerms, FlavorGpus, Mark, Subject, UsagePhase
from queuectl.domain.budgets import (
    GPU_HOUR,
    Budget,
    BudgetScope,
    Spender,
    SpentUnits,
    WhenSpent,
)
from queuectl.domain.fleet import Node
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import PARTS
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used, past_use
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord, NodeRecord, Upserted
from queuectl.domain.rules import Rules, Transformation, UsageFairness
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import BudgetSums, PastUseSums
from queuectl.state.planning_state import PlanningState

DAY = 86400.0
RULE = UsageFairness(half_life=DAY, sampling=300.0)
USER = "example.com/user"
BUSY = PastUseAccount.of_local_queue("a", "busy")
FLAVORS = {GPU: "h100"}
QUEUES = {
    (namespace, name): LocalQueue(namespace, name, "cq")
    for namespace, name in (("a", "busy"), ("a", "idle"), ("b", "busy"))
}


def config(rule: UsageFairness | None = RULE, **rules: object) -> QueueConfig:
    return QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq")},
        local_queues=QUEUES,
        flavors={"h100": ResourceFlavor("h100")},
        rules=Rules(usage_fairness=rule, **rules),  # type: ignore[arg-type]
    )


CONFIG = config()


class World:
    """A ledger of gangs of one pod, and their counter."""

    def __init__(self, queues: QueueConfig = CONFIG, at: float = 0.0) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        self.config = queues
        self.entries: dict[str, Entry] = {}
        self.stored: dict[PastUseAccount, Used] = {}
        self.sums = PastUseSums(self.mirror)
        self.sums.configure(queues, (), at)

    def start(
        self, uid: str, at: float, gpus: int = 8, queue: str = "busy", user: str = ""
    ) -> None:
        shape = PodShape(Resources({GPU: gpus}))
        labels = ((USER, user),) if user else ()
        job = JobRecord(
            "Job", "a", uid, uid, 1, 0.0, queue, (PodSet("main", 1, shape),), labels=labels
        )
        self.mirror.apply([Upserted(job)])
        placement = Placement((PodSetPlacement("main", (), FLAVORS),))
        entry = Entry(
            uid, "Job", "a", uid, State.STARTING, queue, "cq", started_at=at, placement=placement
        )
        self._change(entry, at)

    def end(self, uid: str, at: float) -> None:
        self._change(replace(self.entries[uid], state=State.FINISHED, placement=None), at)

    def sample(self, at: float) -> None:
        rows = self.sums.current(at)
        self.stored |= {row.account: row for row in rows}
        self.sums.written(rows)

    def restart(self, at: float) -> None:
        """A new leader reads what the old one stored."""
        self.sums = PastUseSums(self.mirror)
        self.reload(at)

    def reload(self, at: float) -> None:
        """The leader reads it all again, as after a commit of which it does not know whether it was made."""
        self.sums.learn(self.stored.values())
        self.sums.configure(self.config, reversed(self.entries.values()), at)

    def used(self, at: float, queue: str = "busy") -> float:
        return self.sums.past_use(at).local_queues.get(("a", queue), 0.0)

    def _change(self, entry: Entry, at: float) -> None:
        self.sums.note([EntryChange(self.entries.get(entry.uid), entry, at)])
        self.entries[entry.uid] = entry
        if entry.state is State.FINISHED:
            del self.entries[entry.uid]


def test_after_a_half_life_past_use_is_half_of_what_it_was() -> None:
    used = Used(BUSY, 0.0, {GPU: 8.0})
    assert used.later(DAY, {}, RULE).amounts == {GPU: 4.0}
    assert used.later(2 * DAY, {}, RULE).amounts == {GPU: 2.0}


def test_what_is_held_for_a_half_life_counts_half() -> None:
    assert Used(BUSY, 0.0).later(DAY, {GPU: 8}, RULE).amounts == {GPU: 4.0}


def test_without_a_half_life_only_what_is_held_now_counts() -> None:
    now = replace(RULE, half_life=0.0)
    assert Used(BUSY, 0.0, {GPU: 8.0, "cpu": 3.0}).later(1.0, {GPU: 2}, now).amounts == {
        GPU: 2.0,
        "cpu": 0.0,
    }


def test_a_clock_that_moves_backwards_changes_nothing() -> None:
    used = Used(BUSY, 100.0, {GPU: 8.0})
    assert used.later(50.0, {GPU: 99}, RULE) is used


amounts = st.dictionaries(st.sampled_from([GPU, "cpu", "memory"]), st.integers(0, 10**6))
steps = st.lists(st.floats(0.001, 10 * DAY), min_size=1, max_size=8)


@given(amounts, amounts, steps, st.floats(1.0, 30 * DAY))
def test_looking_in_between_changes_nothing(
    before: dict[str, int], held: dict[str, int], times: list[float], half_life: float
) -> None:
    rule = replace(RULE, half_life=half_life)
    start = used = Used(BUSY, 0.0, before)
    for step in times:
        used = used.later(used.at + step, held, rule)
    assert_close(used.amounts, start.later(used.at, held, rule).amounts)


@given(amounts, amounts, amounts, amounts, st.floats(0.0, 10 * DAY))
def test_the_past_use_of_two_together_is_the_sum_of_theirs(
    one: dict[str, int],
    other: dict[str, int],
    held: dict[str, int],
    more: dict[str, int],
    now: float,
) -> None:
    parts = [
        Used(BUSY, 0.0, one).later(now, held, RULE),
        Used(BUSY, 0.0, other).later(now, more, RULE),
    ]
    whole = Used(BUSY, 0.0, plus(one, other)).later(now, plus(held, more), RULE)
    assert_close(whole.amounts, plus(parts[0].amounts, parts[1].amounts))


@given(amounts, amounts, steps)
def test_past_use_stays_between_what_it_was_and_what_is_held(
    before: dict[str, int], held: dict[str, int], times: list[float]
) -> None:
    used = Used(BUSY, 0.0, before).later(sum(times), held, RULE)
    for name, amount in used.amounts.items():
        ends = sorted((before.get(name, 0), held.get(name, 0)))
        assert ends[0] * (1 - 1e-9) <= amount <= ends[1] * (1 + 1e-9)


def test_a_start_adds_one_sampling_interval_at_once() -> None:
    world = World()
    world.start("u1", 0.0)
    assert isclose(world.used(0.0), 8 * (1 - 0.5 ** (300 / DAY)))


def test_a_burst_of_starts_counts_before_the_first_sample() -> None:
    world = World()
    for i in range(10):
        world.start(f"u{i}", 0.0)
        world.end(f"u{i}", 0.0)
    assert isclose(world.used(0.0), 10 * 8 * RULE.fresh(300.0))


def test_cluster_queue_local_queue_and_user_are_charged_alike() -> None:
    world = World(config(replace(RULE, user_label=USER)))
    world.start("u1", 0.0, user="ann")
    world.start("u2", 0.0, queue="idle", user="ann")
    world.start("u3", 0.0, queue="idle")
    past = world.sums.past_use(DAY)
    busy, idle = past.local_queues["a", "busy"], past.local_queues["a", "idle"]
    assert isclose(idle, 2 * busy)
    assert isclose(past.cluster_queues["cq"], busy + idle)
    assert isclose(past.users["ann"], 2 * busy)
    assert list(past.users) == ["ann"]


def test_without_a_label_users_are_not_distinguished() -> None:
    world = World()
    world.start("u1", 0.0, user="ann")
    assert world.sums.past_use(DAY).users == {}


def test_resources_are_weighed_and_the_weight_of_a_local_queue_divides() -> None:
    rule = replace(RULE, resource_weights={GPU: 3.0})
    queues = {
        ("a", "busy"): LocalQueue("a", "busy", "cq", weight=2000),
        ("a", "idle"): LocalQueue("a", "idle", "cq", weight=0),
    }
    used = [
        Used(BUSY, 0.0, {GPU: 8.0, "cpu": 2000.0}),
        Used(PastUseAccount.of_local_queue("a", "idle"), 0.0, {}),
        Used(PastUseAccount.of_local_queue("a", "deleted"), 0.0, {GPU: 1.0}),
        Used(PastUseAccount(AccountScope.CLUSTER_QUEUE, "cq"), 0.0, {GPU: 8.0}),
    ]
    past = past_use(used, replace_queues(rule, queues))
    assert past.local_queues == {("a", "busy"): (3 * 8 + 2) / 2, ("a", "idle"): inf}
    assert past.cluster_queues == {"cq": 24.0}


def test_what_is_charged_counts_not_what_is_asked() -> None:
    twice = Transformation(GPU, {GPU: 2}, retain=False)  # type: ignore[dict-item]
    world, plain = World(config(transformations=(twice,))), World()
    for one in (world, plain):
        one.start("u1", 0.0)
    assert isclose(world.used(DAY), 2 * plain.used(DAY))


def test_without_usage_based_fair_sharing_nothing_is_counted() -> None:
    world = World(config(None))
    world.start("u1", 0.0)
    assert not world.sums.due(1e9)
    assert world.sums.current(DAY) == ()
    assert world.sums.past_use(DAY).local_queues == {}


def test_after_it_is_enabled_running_gangs_count_from_their_start() -> None:
    late, early = World(config(None)), World()
    for world in (late, early):
        world.start("u1", 0.0)
    late.sums.configure(CONFIG, late.entries.values(), DAY)
    assert isclose(late.used(2 * DAY), early.used(2 * DAY))


def test_a_new_half_life_counts_from_now_on() -> None:
    world = World()
    world.start("u1", 0.0)
    world.end("u1", DAY)
    before = world.used(DAY)
    world.sums.configure(config(replace(RULE, half_life=2 * DAY)), (), DAY)
    assert isclose(world.used(3 * DAY), before / 2)


def test_samples_are_due_at_their_interval_and_at_once_after_a_start() -> None:
    world = World()
    assert world.sums.due(1000.0)
    world.sample(1000.0)
    assert not world.sums.due(1299.0)
    assert world.sums.due(1300.0)


def test_a_sample_holds_what_changed_and_is_repeated_until_it_is_written() -> None:
    world = World()
    world.start("u1", 0.0)
    world.start("u2", 0.0, queue="idle")
    world.end("u2", 10.0)
    lost = world.sums.current(300.0)
    assert {row.account.name for row in lost} == {"a/busy", "a/idle", "cq"}
    world.sample(600.0)
    assert {row.account.name: row.at for row in world.stored.values()} == {
        "a/busy": 600.0, "a/idle": 10.0, "cq": 600.0,
    }  # fmt: skip
    assert {row.account.name for row in world.sums.current(900.0)} == {"a/busy", "cq"}


def test_what_changes_while_a_sample_is_written_is_in_the_next() -> None:
    world = World()
    world.start("u1", 0.0)
    rows = world.sums.current(10.0)
    world.end("u1", 20.0)
    world.sums.written(rows)
    assert {row.at for row in world.sums.current(30.0)} == {20.0}


def test_an_account_is_forgotten_once_nothing_is_left_of_it() -> None:
    world = World()
    world.start("u1", 0.0)
    world.start("u2", 0.0, queue="idle")
    world.end("u2", 0.0)
    world.sample(0.0)
    assert world.sums.forget(30 * DAY) == 0.0
    assert ("a", "idle") in world.sums.past_use(30 * DAY).local_queues
    assert world.sums.forget(31 * DAY) == DAY
    assert list(world.sums.past_use(31 * DAY).local_queues) == [("a", "busy")]


def test_edits_of_the_configuration_keep_no_account_of_which_nothing_is_left() -> None:
    """They are more frequent than 30 half-lives."""
    world = World()
    world.start("u1", 0.0)
    world.start("u2", 0.0, queue="idle")
    world.end("u2", 0.0)
    before = world.used(30 * DAY, "idle")
    world.sample(0.0)
    for day in (10, 20, 30):
        world.sums.configure(CONFIG, world.entries.values(), day * DAY)
        assert {row.account.name for row in world.sums.current(day * DAY)} == {"a/busy", "cq"}
    assert isclose(world.used(30 * DAY, "idle"), before)
    world.sums.forget(31 * DAY)
    assert list(world.sums.past_use(31 * DAY).local_queues) == [("a", "busy")]


def test_an_account_that_an_edit_gives_a_running_gang_counts_it_from_then_on() -> None:
    world = World(config(replace(RULE, user_label=USER)))
    world.start("u1", 0.0, user="ann")
    world.end("u1", 0.0)
    world.sums.configure(CONFIG, (), 0.0)
    world.start("u2", 0.0, user="ann")
    labeled = config(replace(RULE, user_label=USER))
    world.sums.configure(labeled, world.entries.values(), DAY)
    assert isclose(world.sums.past_use(2 * DAY).users["ann"], 8 * RULE.fresh(300.0) / 4 + 4)


def test_what_others_stored_is_taken_over_where_nothing_is_known() -> None:
    world = World()
    world.start("u1", 0.0)
    before = world.used(DAY)
    idle = PastUseAccount.of_local_queue("a", "idle")
    world.sums.learn([Used(BUSY, 0.0, {GPU: 99.0}), Used(idle, 0.0, {GPU: 6.0})])
    assert isclose(world.used(DAY), before)
    assert isclose(world.used(DAY, "idle"), 3.0)


def test_reading_the_ledger_again_forgets_nothing_that_was_not_sampled() -> None:
    world = World()
    world.start("u1", 0.0)
    world.end("u1", 100.0)
    before = world.used(DAY)
    world.reload(200.0)
    assert isclose(world.used(DAY), before)


def test_what_a_restart_must_not_do_twice_is_charge_a_start() -> None:
    world = World()
    world.start("u1", 0.0)
    world.sample(300.0)
    before = world.used(DAY)
    world.restart(DAY)
    assert isclose(world.used(DAY), before)


lives = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "sample", "restart", "reload"]),
        st.floats(1.0, DAY),
        st.integers(0, 5),
        st.sampled_from(["busy", "idle"]),
    ),
    min_size=1,
    max_size=30,
)


@given(lives)
def test_a_restart_is_not_noticed_where_what_ended_was_sampled(
    life: list[tuple[str, float, int, str]],
) -> None:
    """One world is killed and restarted now and then, the other never; only a gang that lives between two samples can be lost."""
    killed, never = World(), World()
    at = 0.0
    for number, (what, later, which, queue) in enumerate(life):
        at += later
        for world in (killed, never):
            running = sorted(world.entries)
            if what == "start":
                world.start(f"u{number:02}", at, gpus=which + 1, queue=queue)
            elif what == "end" and running:
                world.end(running[which % len(running)], at)
                world.sample(at)
            elif what == "sample":
                world.sample(at)
            elif what == "restart" and world is killed:
                world.restart(at)
            elif what == "reload" and world is killed:
                world.reload(at)
        for name in ("busy", "idle"):
            assert isclose(killed.used(at, name), never.used(at, name), rel_tol=1e-9, abs_tol=1e-12)


def test_with_nodes_the_pods_that_sit_on_them_are_charged() -> None:
    world = World()
    room = Resources({GPU: 8})
    world.mirror.apply([Upserted(NodeRecord(Node("n", {}, room), 1))])
    world.start("u1", 0.0)
    assert world.used(DAY) > 0  # its flavor has no topology: all of its pods are


@pytest.mark.parametrize("state", [State.RUNNING, State.EVICTING])
def test_a_gang_counts_until_its_pods_are_deleted(state: State) -> None:
    world = World()
    world.start("u1", 0.0)
    before = world.used(DAY)
    world._change(replace(world.entries["u1"], state=state), 100.0)
    assert isclose(world.used(DAY), before)
    world._change(replace(world.entries["u1"], state=State.PENDING, placement=None), DAY)
    assert isclose(world.used(2 * DAY), before / 2)


def test_a_gang_that_releases_pods_is_charged_less_and_not_as_if_it_had_started() -> None:
    world = World()
    world.start("u1", 0.0)
    before = world.used(DAY)
    none_left = Placement((PodSetPlacement("main", (), FLAVORS, pods=0),))
    world._change(replace(world.entries["u1"], placement=none_left), DAY)
    assert isclose(world.used(DAY), before)
    assert isclose(world.used(2 * DAY), before / 2)
    world._change(
        replace(world.entries["u1"], placement=Placement((PodSetPlacement("main", (), FLAVORS),))),
        2 * DAY,
    )
    assert isclose(world.used(2 * DAY), before / 2)
    assert isclose(world.used(3 * DAY), before / 4 + 4)


def plus(one: object, other: object) -> dict[str, float]:
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def assert_close(one: object, other: object) -> None:
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    for name in {**one, **other}:
        assert isclose(one.get(name, 0.0), other.get(name, 0.0), rel_tol=1e-9, abs_tol=1e-6)


def replace_queues(rule: UsageFairness, queues: dict[tuple[str, str], LocalQueue]) -> QueueConfig:
    return QueueConfig(local_queues=queues, rules=Rules(usage_fairness=rule))


# ---- budgets


@pytest.mark.parametrize("created", ["before it ends", "after it has ended"])
def test_a_budget_counts_a_gang_that_has_ended_until_its_hours_are_in_the_ledger(
    created: str,
) -> None:
    config = QueueConfig(budgets={"b": Budget("b", BudgetScope.CLUSTER_QUEUE, "cq", 10_000)})
    sums = BudgetSums()
    runs = Entry("u1", "Job", "a", "train", State.RUNNING, cluster_queue="cq", gpus=16)
    ended = EntryChange(runs, replace(runs, state=State.FINISHED), 160.0)
    if created == "after it has ended":
        sums.note([ended])
    sums.learn(config.budgets, SpentUnits(until=100.0))
    if created == "before it ends":
        sums.note([ended])
    (before,) = sums.balances(config, 200.0)
    assert before.ended == before.cost(runs.gpus, 100.0, 160.0) > 0
    sums.add(Fold(100.0, 170.0, AccountingTerms()), 170.0)
    (after,) = sums.balances(config, 200.0)
    assert (after.ended, after.counted) == (0, 170.0)


@pytest.mark.parametrize(
    ("code", "priority"), [(Code.SHAPE_NEVER_FITS, 0), (Code.TOPOLOGY_PLACEMENT_FAILED, -5)]
)
def test_a_budget_keeps_no_hours_for_a_gang_that_never_fits(code: Code, priority: int) -> None:
    """The older of two gangs would use all hours if it can start later."""
    lowers = {"when_spent": WhenSpent.LOWER_PRIORITY, "priority_when_spent": -5}
    rule = Budget("b", BudgetScope.NAMESPACE, "a", GPU_HOUR, **lowers)  # type: ignore[arg-type]
    mirror = Mirror({"jobs": "Job"})
    pods = (PodSet("main", 1, PodShape(Resources({GPU: 8}))),)
    entries = []
    for at, name in enumerate(("large", "next")):
        job = JobRecord("Job", "a", name, name, 1, float(at), "busy", podsets=pods)
        mirror.apply([Upserted(job)])
        entries.append(Entry(name, "Job", "a", name, State.PENDING, queue="busy"))
    mirror.apply([Upserted(NamespaceRecord("a", 1))])
    state = PlanningState(mirror)
    queues = {"cq": ClusterQueue("cq", namespace_selector=LabelSelector())}
    state.configure(replace(CONFIG, cluster_queues=queues, budgets={"b": rule}), 20.0)
    state.load([replace(entries[0], reason=Reason(code)), entries[1]])
    _, gang = state.snapshot(20.0, SolverLimits()).pending
    assert gang.workload.priority == priority


def test_the_cost_of_adding_hours_does_not_depend_on_the_number_of_budgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 gangs and 1,000 Budgets are added in one step, in which the leader does nothing else."""
    gangs = 200
    budgets = {f"b{n}": Budget(f"b{n}", BudgetScope.USER, f"u{n}", 10_000) for n in range(gangs)}
    fold = Fold(0.0, 100.0, AccountingTerms())
    held = FlavorGpus("h100", "", 8)
    for number in range(gangs):
        user = f"u{number // 2}"
        who = Subject(f"uid-{number}", "Job", "a", f"j{number}", "q", "cq", "", user, ())
        mark = Mark(who.uid, 0.0, 0.0, UsagePhase.HOLDS, 1, held.gpus, (held,), who)
        fold.workload(None, [mark], ())
    sums = BudgetSums()
    sums.learn(budgets, SpentUnits(until=0.0))
    looked_up: list[BudgetScope] = []
    name_in = Spender.of

    def counting(spender: Spender, scope: BudgetScope) -> str:
        looked_up.append(scope)
        return name_in(spender, scope)

    monkeypatch.setattr(Spender, "of", counting)
    sums.add(fold, 100.0)
    assert 0 < len(looked_up) <= gangs * len(BudgetScope)
    used = {one.budget.name: one.used for one in sums.balances(QueueConfig(budgets=budgets), 100.0)}
    assert used == {f"b{n}": 2 * 8 * PARTS * 100_000 if n < gangs // 2 else 0 for n in range(gangs)}
