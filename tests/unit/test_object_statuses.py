"""The statuses that are due: a pure function of objects, decision, queues and time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.containment import Containment
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.domain.reasons import Code
from queuectl.objects.configuration.owners import Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.status_wire import ObjectStatus, QueueStatus, seen_status
from queuectl.objects.configuration.stops import with_operation
from queuectl.ownership.observed import NO_GENERATION, FollowedObject
from queuectl.ownership.own_status import OwnStatusForm
from queuectl.ownership.status_form import Decision, QueuesNow, QueueUse, StatusForm
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.statuses import (
    COUNTS_SECONDS,
    REPEAT_SECONDS,
    SPACING_SECONDS,
    DueStatus,
    StatusReducer,
    Urgency,
)
from queuectl.state.holdings import Row
from tests.support import followed as f
from tests.unit.test_argocd_health import health

BEGAN = 1_000_000.0
FORM = FORMS[Owner.KUBERNETES]
KINDS = frozenset(kind.kind.kind for kind in f.KINDS)


class World:
    """Objects of a cluster that has every status that is written to it."""

    def __init__(self, *bodies: f.Object, form: StatusForm = FORM) -> None:
        self.now = BEGAN
        self.form = form
        self.containment = Containment(lambda: self.now)
        self.reducer = StatusReducer(form, BEGAN, self.containment)
        self.held: dict[Row, int] = {}
        self.kept: dict[Row, int] = {}
        self.documents: dict[DocumentKey, f.Object] = {}
        self.built: dict[DocumentKey, f.Object] = {}
        self.config = build((), 1)
        self.objects: dict[DocumentKey, FollowedObject] = {}
        self.statuses: dict[str, QueueStatus] = {}
        self.faults: dict[DocumentKey, str] = {}
        self.waiting: set[DocumentKey] = set()
        self.entries: list[Entry] = []
        self.orders = itertools.count(1)
        for body in bodies:
            self.apply(body)

    def apply(self, body: f.Object, *, acts: bool = True) -> DocumentKey:
        key = DocumentKey.of(body)
        known = self.objects.get(key)
        generation = known.generation + 1 if known is not None else 1
        self.objects[key] = FollowedObject(key, str(key), generation, next(self.orders), body)
        if acts:
            self.documents[key] = body
        return key

    def examine(self, kinds: frozenset[str] = KINDS) -> None:
        """Examine all objects under the decision of now."""
        if self.documents != self.built:
            self.built, self.config = dict(self.documents), build(self.documents.values(), 1)
        queues = QueuesNow(self.config, lambda _: {})
        use = QueueUse(self.entries, self.held, self.kept)
        waiting, faults = frozenset(self.waiting), dict(self.faults)
        self.reducer.decided(
            Decision(
                dict(self.objects), kinds, faults, waiting, 1, lambda o: self.statuses.get(o.uid)
            )
        )
        self.reducer.examine_all()
        counts = self.form.counts(use, queues)
        self.reducer.examine(queues, counts, self.now, 2 * len(self.objects))
        assert not self.reducer.unexamined

    def due(self, kinds: frozenset[str] = KINDS) -> list[DueStatus]:
        self.examine(kinds)
        return list(iter(lambda: self.reducer.next(self.now), None))

    def write(self, due: DueStatus) -> None:
        self.reducer.written(due, self.now)
        body = self.form.body(due.followed.key.kind, "v1beta2", due.status)
        seen = self.form.read(msgspec.json.encode(body))
        assert seen is not None
        self.statuses[due.followed.uid] = seen

    def act(self, after: float = 0.0) -> list[DocumentKey]:
        """Write everything that is due after so many seconds."""
        self.now += after
        written = self.due()
        for due in written:
            self.write(due)
        return [due.followed.key for due in written]

    def conditions(self, key: DocumentKey) -> dict[str, tuple[str, str, str]]:
        conditions = self.statuses[str(key)].conditions or []
        return {one.type: (one.status, one.reason, one.message) for one in conditions}

    def health(self, key: DocumentKey) -> str:
        """By the script for Argo CD."""
        body, followed = self.objects[key].document, self.objects[key]
        assert body is not None
        metadata = {**body["metadata"], "generation": followed.generation}
        status = msgspec.to_builtins(self.statuses[str(key)])
        document = {**body, "metadata": metadata, "status": status}
        return health(document)[0]


def gang(state: State, number: int = 1) -> Entry:
    return Entry(f"u{number}", "Job", "team", f"g{number}", state, queue="l", cluster_queue="a")


def a_world(form: StatusForm = FORM) -> World:
    return World(f.flavor("gpu"), f.queue("a"), f.local_queue("team", "l", "a"), form=form)


QUEUE = DocumentKey("ClusterQueue", "", "a")
LOCAL = DocumentKey("LocalQueue", "team", "l")
FLAVOR = DocumentKey("ResourceFlavor", "", "gpu")
ACTS = ("True", "Accepted", "The controller uses it")


# ---- Conditions


def test_an_object_that_acts_is_ready_and_a_queue_is_active() -> None:
    world = a_world()
    assert set(world.act()) == {QUEUE, LOCAL, FLAVOR}
    active = {"Active": ("True", "Active", "Gangs can start"), "Ready": ACTS}
    assert world.conditions(QUEUE) == world.conditions(LOCAL) == active
    assert world.conditions(FLAVOR) == {"Ready": ACTS}
    assert world.statuses[str(QUEUE)].observed_generation == 1
    assert {world.health(key) for key in (QUEUE, LOCAL, FLAVOR)} == {"Healthy"}


def test_a_status_that_the_object_has_is_not_due() -> None:
    world = a_world()
    world.act()
    assert [world.act(after) for after in (0.0, 1.0, 100.0, 1e6)] == [[], [], [], []]


def test_an_error_is_the_message_and_the_last_valid_version_stays_active() -> None:
    world = a_world()
    world.act()
    world.apply(f.queue("a", flavor="absent"), acts=False)
    world.faults[QUEUE] = "spec.resourceGroups: ResourceFlavor absent does not exist"
    assert world.act(1.0) == [QUEUE]
    conditions = world.conditions(QUEUE)
    assert conditions["Ready"] == ("False", "Invalid", world.faults[QUEUE])
    assert conditions["Active"][0] == "True"
    assert world.statuses[str(QUEUE)].observed_generation == 2
    assert world.health(QUEUE) == "Degraded"


def test_a_queue_without_a_valid_version_is_not_active() -> None:
    world = World()
    key = world.apply(f.queue("a", flavor="absent"), acts=False)
    world.faults[key] = "x" * 5000
    world.act()
    assert world.conditions(key)["Active"][:2] == ("False", "Misconfigured")
    assert len(world.conditions(key)["Ready"][2]) <= 1000
    assert world.act(1e6) == [], "a long message is compared as well"


def test_an_edit_that_waits_is_not_ready_yet() -> None:
    world = a_world()
    world.waiting.add(world.apply(f.queue("a", 1)))
    world.act()
    assert world.conditions(QUEUE)["Ready"][:2] == ("Unknown", "Waiting")
    assert world.health(QUEUE) == "Progressing"
    world.waiting.clear()
    assert world.act(5.0) == [QUEUE]
    assert world.health(QUEUE) == "Healthy"


@pytest.mark.parametrize(
    ("change", "queue", "local", "health"),
    [
        (f.queue("a", stopPolicy="Hold"), Code.QUEUE_STOPPED, Code.QUEUE_STOPPED, "Suspended"),
        (
            with_operation(f.queue("a"), StopPolicy.HOLD_AND_DRAIN),
            Code.QUEUE_STOPPED,
            Code.QUEUE_STOPPED,
            "Suspended",
        ),
        (f.queue("a", flavor="absent"), Code.MISCONFIGURED, Code.MISCONFIGURED, "Degraded"),
        (
            f.queue("a", admissionChecksStrategy={"admissionChecks": [{"name": "absent"}]}),
            Code.UNSATISFIED_CHECKS,
            Code.UNSATISFIED_CHECKS,
            "Degraded",
        ),
        (f.queue("a", namespaceSelector=None), Code.MISCONFIGURED, Code.MISCONFIGURED, "Degraded"),
        (
            f.queue("a", namespaceSelector={"matchLabels": {"x": "y"}}),
            None,
            Code.MISCONFIGURED,
            "Healthy",
        ),
        (f.local_queue("team", "l", "absent"), None, Code.MISCONFIGURED, "Healthy"),
    ],
    ids=["stopped", "operation", "flavor", "check", "selector", "namespace", "target"],
)
def test_a_queue_that_starts_no_gang_is_not_active(
    change: dict[str, Any], queue: Code | None, local: Code | None, health: str
) -> None:
    world = a_world()
    world.apply(change)
    world.act()

    def reason(key: DocumentKey) -> str | None:
        status, code, message = world.conditions(key)["Active"]
        assert (status == "True") is (message == "Gangs can start")
        return None if status == "True" else code

    assert (reason(QUEUE), reason(LOCAL)) == (queue, local)
    assert world.health(QUEUE) == health


def test_a_condition_that_stays_keeps_its_time() -> None:
    world = a_world()
    world.act()
    world.apply(f.queue("a", 16, stopPolicy="Hold"))
    world.act(60.0)
    times = {
        one.type: one.last_transition_time for one in world.statuses[str(QUEUE)].conditions or ()
    }
    assert times == {"Ready": "1970-01-12T13:46:40Z", "Active": "1970-01-12T13:47:40Z"}


def test_the_newest_edit_is_first_and_unknown_objects_are_left_out() -> None:
    world = World(f.flavor("gpu"), *(f.queue(name) for name in "abc"))
    world.apply(f.queue("b", 1))
    assert [due.followed.key.name for due in world.due()] == ["b", "c", "a", "gpu"]
    world.now += SPACING_SECONDS
    assert {due.followed.key.kind for due in world.due(frozenset({"ClusterQueue"}))} == {
        "ClusterQueue"
    }
    world.objects[QUEUE] = replace(world.objects[QUEUE], generation=NO_GENERATION)
    assert QUEUE not in {due.followed.key for due in world.due()}


# ---- Counts


def test_counts_are_those_of_the_metrics() -> None:
    world = a_world()
    states = [*State]
    world.entries = [gang(state, number) for number, state in enumerate(states)]
    world.act()
    status = world.statuses[str(QUEUE)]
    assert status == world.statuses[str(LOCAL)]
    assert status.pending_workloads == sum(state.waiting for state in states)
    assert status.admitted_workloads == 2
    assert status.reserving_workloads == 3


def test_counts_are_written_once_in_their_time_and_conditions_at_once() -> None:
    world = a_world()
    world.act()
    world.entries = [gang(State.PENDING)]
    assert world.act(COUNTS_SECONDS - 1) == []
    world.apply(f.queue("a", 16))
    assert world.act() == [QUEUE]
    assert world.statuses[str(QUEUE)].pending_workloads == 0, "the counts are not due yet"
    assert set(world.act(1.0)) == {QUEUE, LOCAL}
    assert world.statuses[str(QUEUE)].pending_workloads == 1


def test_a_new_leader_waits_before_it_writes_counts() -> None:
    world = a_world()
    world.act()
    world.entries, world.reducer = (
        [gang(State.RUNNING)],
        StatusReducer(FORM, world.now, Containment(lambda: BEGAN)),
    )
    assert world.act(COUNTS_SECONDS - 1) == []
    assert set(world.act(1.0)) == {QUEUE, LOCAL}


# ---- Others and faults


def test_a_status_that_others_overwrite_is_written_again_after_a_time() -> None:
    world = a_world()
    world.act()
    world.statuses.clear()
    assert world.act(REPEAT_SECONDS - 1) == []
    assert len(world.act(1.0)) == 3


def test_a_refused_status_is_due_again_later_or_after_an_edit() -> None:
    world = World(f.flavor("gpu"))
    pauses = []
    [due] = world.due()
    for _ in range(10):
        world.reducer.failed(due)
        before = world.now
        while not (again := world.due()):
            world.now += 1.0
        [due] = again
        pauses.append(world.now - before)
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert max(pauses) == 600.0
    world.reducer.failed(due)
    world.apply(f.flavor("gpu"))
    world.now += SPACING_SECONDS
    assert world.due()


def test_a_deleted_object_is_forgotten() -> None:
    world = World(*(f.flavor(str(number)) for number in range(50)))
    world.act()
    world.objects.clear()
    assert world.due() == []
    assert not world.reducer._writes


# ---- Order: each object, and each kind, hurts only itself

TURN = 0.2


class Writes:
    """A writer that has a turn for every few seconds. It writes what is due, unless the kind of the object is refused."""

    def __init__(self, world: World, *refused: str, turn: float = TURN) -> None:
        self.world = world
        self.refused = refused
        self.turn = turn
        self.tries: list[tuple[float, DocumentKey]] = []

    def turns(self, count: int) -> None:
        """Take this number of turns. Each object is examined before them."""
        self.world.examine()
        for _ in range(count):
            due = self.world.reducer.next(self.world.now)
            self.world.now += self.turn
            if due is None:
                continue
            self.tries.append((self.world.now, due.followed.key))
            if due.followed.key.kind in self.refused:
                self.world.reducer.failed(due)
            else:
                self.world.write(due)

    def tried(self, key: DocumentKey) -> list[float]:
        return [at for at, tried in self.tries if tried == key]

    def shown(self, key: DocumentKey) -> bool:
        status = self.world.statuses.get(str(key))
        generation = self.world.objects[key].generation
        return status is not None and status.observed_generation == generation


def test_a_storm_of_edits_takes_one_write_in_a_second_and_no_other_edit_waits_for_it() -> None:
    world = World(f.flavor("gpu"), *(f.queue(name) for name in "abcd"))
    world.act()
    writes, began = Writes(world), world.now
    for number in range(200):
        for quota in range(100):  # 20,000 edits in 40 s
            world.apply(f.queue("a", quota))
        if number % 20 == 5:
            edited, at = world.apply(f.queue("b", number)), world.now
        writes.turns(1)
        if number % 20 == 15:
            assert writes.shown(edited)
            assert writes.tried(edited)[-1] - at <= 2.0
    assert len(writes.tried(QUEUE)) <= world.now - began + 1
    writes.turns(10)
    assert writes.shown(QUEUE), "and the last edit itself, within 2 s"


def test_storms_on_more_objects_than_can_be_written_leave_turns_to_all_others() -> None:
    names, idle = [f"s{number}" for number in range(12)], [f"i{number}" for number in range(6)]
    world = World(f.flavor("gpu"), *map(f.queue, names))
    world.act()
    for name in idle:
        world.apply(f.queue(name))
    writes = Writes(world)
    for number in range(60):
        for name in names:
            world.apply(f.queue(name, number))
        if number == 40:
            late = world.apply(f.queue("i0", 1))
        writes.turns(1)
        assert number != 43 or writes.shown(late), "the object that was written longest ago"
    tried = {key.name for _, key in writes.tries}
    assert tried >= {*idle, *names}, "first statuses have a turn of five"


def test_a_kind_that_is_refused_delays_neither_counts_nor_edits_of_others() -> None:
    locals_ = [f.local_queue("team", f"l{number}", "a") for number in range(300)]
    world = World(f.flavor("gpu"), f.queue("a"), f.queue("b"), *locals_)
    writes = Writes(world, "LocalQueue", turn=2.0)
    for number in range(100):
        world.entries = [gang(State.PENDING, uid) for uid in range(number % 7)]
        writes.turns(5)
    counted = writes.tried(QUEUE)
    waits = [after - before for before, after in itertools.pairwise(counted)]
    assert max(waits[1:]) <= COUNTS_SECONDS + 20.0, "after the first try of each LocalQueue"
    assert len(waits) > 5
    edited = world.apply(f.queue("b", 1))
    writes.turns(2)
    assert writes.shown(edited)
    writes.refused = ()
    for _ in range(130):
        writes.turns(5)
    assert all(writes.shown(DocumentKey.of(body)) for body in locals_)


def test_an_edit_that_was_not_answered_once_is_still_an_edit() -> None:
    world = World(f.flavor("gpu"), *(f.queue(f"q{number}") for number in range(100)))
    world.examine()
    edited = world.apply(f.queue("q7", 1))
    [due, *_] = world.due()
    assert due.followed.key == edited
    world.reducer.failed(due)
    world.now += 5.0
    assert world.due()[0].followed.key == edited


def test_an_edit_is_before_objects_that_an_edit_of_another_one_changes() -> None:
    world = World(*(f.queue(f"q{number}") for number in range(50)))
    world.faults = dict.fromkeys(world.objects, "ResourceFlavor gpu does not exist")
    writes = Writes(world)
    writes.turns(1)
    [(_, edited)] = writes.tries
    world.apply(f.flavor("gpu"))
    world.faults = {}
    writes.turns(1)  # the queues are valid now
    world.apply(f.queue(edited.name, 1))
    world.now += SPACING_SECONDS
    writes.turns(2)  # one of them can be for the object that has waited longest
    assert writes.shown(edited)
    writes.turns(100)
    assert {world.health(key) for key in world.objects if key.kind == "ClusterQueue"} == {"Healthy"}


def test_an_edit_is_first_however_often_the_content_before_it_was_refused() -> None:
    world = World(f.flavor("gpu"), f.queue("a"), f.queue("b"))
    for _ in range(3):
        [due] = [due for due in world.due() if due.followed.key == QUEUE]
        world.reducer.failed(due)
        world.now += 60.0
    world.apply(f.queue("a", 1))
    assert [due.urgency for due in world.due() if due.followed.key == QUEUE] == [Urgency.EDIT]


def test_objects_that_are_deleted_or_created_again_take_no_turn_of_old_ones() -> None:
    world = World(f.flavor("gpu"), *(f.queue(name) for name in "abc"))
    world.examine()
    del world.objects[QUEUE]
    again = DocumentKey("ClusterQueue", "", "b")
    world.objects[again] = replace(world.objects[again], uid="another", order=99)
    due = world.due()
    assert [one.followed.uid for one in due] == ["another", "ClusterQueue c", "ResourceFlavor gpu"]
    world.objects.clear()
    world.examine()
    for one in due:  # the writes end after the deletion
        world.reducer.written(one, world.now)
        world.reducer.failed(one)
    assert not world.reducer._writes


def test_a_clock_that_is_set_back_delays_no_status() -> None:
    world = a_world()
    world.act()
    world.now -= 3600.0
    world.apply(f.queue("a", 1))
    assert world.act() == [QUEUE]


HOSTILE = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b'{"conditions": {}}',
    b'{"conditions": [1]}',
    b'{"conditions": [{"type": "Ready"}]}',
    b'{"observedGeneration": ' + b"9" * 400 + b"}",
    b'{"pendingWorkloads": -1}',
    b"[" * 2000,
    b'{"conditions": ' + b"[" * 2000,
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_status_of_another_form_is_replaced(content: bytes) -> None:
    assert seen_status(content) is None
    world = a_world()
    assert len(world.act()) == 3


def test_a_large_status_of_others_needs_no_memory() -> None:
    conditions = [
        {"type": f"Other{number}", "status": "True", "message": "x" * 30_000}
        for number in range(100)
    ]
    conditions.append({"type": "Ready", "status": "True", "message": "y" * 30_000})
    content = msgspec.json.encode({"conditions": conditions, "flavorsUsage": [{"name": "gpu"}]})
    assert seen_status(content) == QueueStatus(conditions=[])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["edit", "break", "repair", "stop", "gangs", "overwrite", "refuse", "wait"]
        ),
        st.floats(0.0, 40.0),
    ),
    max_size=30,
)


def take(world: World, step: str, number: int) -> None:
    match step:
        case "edit":
            world.apply(f.queue("a", number))
        case "stop":
            world.apply(f.queue("a", stopPolicy="Hold"))
        case "break":
            world.faults[world.apply(f.queue("a", "much"), acts=False)] = f"error {number}"
        case "repair":
            world.faults.clear()
        case "gangs":
            world.entries = [gang(State.PENDING, uid) for uid in range(number)]
        case "overwrite":
            world.statuses.pop(str(LOCAL), None)
        case "refuse":
            for due in world.due():
                world.reducer.failed(due)


@given(STEPS)
def test_counts_keep_their_time_and_the_status_ends_as_it_is_due(
    steps: list[tuple[str, float]],
) -> None:
    world = a_world()
    counted: dict[DocumentKey, list[float]] = {}
    for number, (step, seconds) in enumerate([*steps, ("repair", 1000.0), ("wait", 1000.0)]):
        take(world, step, number)
        before = dict(world.statuses)
        for key in world.act(seconds):
            old, new = before.get(str(key)), world.statuses[str(key)]
            if old is not None and old.pending_workloads != new.pending_workloads:
                counted.setdefault(key, []).append(world.now)
    for times in counted.values():
        assert all(b - a >= COUNTS_SECONDS for a, b in itertools.pairwise(times))
    assert world.due() == []
    assert world.conditions(QUEUE)["Ready"][0] == "True"
    assert world.statuses[str(QUEUE)].pending_workloads == len(world.entries)


class _Defective(OwnStatusForm):
    """Fails for one queue."""

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,
        queues: QueuesNow,
        now: float,
    ) -> ObjectStatus:
        if followed.key == QUEUE:
            raise ZeroDivisionError
        return super().status(followed, had, decision, queues, now)


@pytest.mark.sets_aside
def test_an_object_whose_status_fails_is_set_aside_and_the_others_are_written():
    world = a_world(_Defective())
    assert QUEUE not in world.act()
    assert world.statuses
    (set_aside,) = world.containment
    assert (set_aside.ref, set_aside.failures) == (str(QUEUE), 1)
    world.act(1.0)
    assert [one.failures for one in world.containment] == [1], "it is tried again after a pause"
    world.reducer = StatusReducer(FORM, world.now, world.containment)
    assert QUEUE in world.act(10_000.0)
    assert world.containment.empty
