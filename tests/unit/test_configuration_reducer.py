"""The decisions of a leader that follows objects of the cluster, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.ledger import Document
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.domain.records import ConfigurationRecord, Deleted, ListCompleted, Upserted
from queuectl.objects.configuration.followed import followed_reader
from queuectl.objects.configuration.links import circular_cohorts
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.configuration.stops import stop_of, with_operation
from queuectl.ownership.effects import permits_more
from queuectl.ownership.observed import ObservedObjects
from queuectl.ownership.reducer import LONGEST_WAIT, Batch, Reducer
from tests.support import followed as f

SETTLE = 5.0


@dataclass
class World:
    """Objects, a catalog, and a leader between them, in virtual time."""

    now: float = 1000.0
    version: int = 1
    stored: dict[DocumentKey, Document] = field(default_factory=dict)
    observed: ObservedObjects = field(default_factory=lambda: ObservedObjects(f.KINDS))
    reducer: Reducer = field(default_factory=lambda: Reducer(SETTLE))
    confirmed: str = ""
    generations: dict[str, int] = field(default_factory=dict)
    writes: int = 0

    def list_all(self, *bodies: f.Object) -> Batch:
        self.observed.apply(f.listed(*bodies, version=self.version), self.now)
        return self.act()

    def apply(self, *bodies: f.Object) -> None:
        """Create or edit objects, one after the other."""
        for body in bodies:
            self.version += 1
            uid = f.record(body).uid
            self.generations[uid] = generation = self.generations.get(uid, 1) + 1
            record = f.record(body, generation=generation, version=self.version)
            self.observed.apply([Upserted(record)], self.now)

    def delete(self, kind: str, *names: str, namespace: str = "") -> None:
        for name in names:
            self.version += 1
            uid = f"{kind}/{namespace}/{name}"
            delta = Deleted(f.plural_of(kind), uid, self.version)
            self.observed.apply([delta], self.now)

    def act(self, after: float = 0.0) -> Batch:
        """The decision after so many seconds, stored."""
        self.now += after
        batch = self.reducer.decide(
            self.stored,
            self.observed.objects(),
            self.observed.known_kinds,
            last_edit=self.observed.last_edit,
            now=self.now,
            confirmed=self.confirmed,
        )
        for key, edit in batch.edits.items():
            self.writes += 1
            if edit.document is None:
                del self.stored[key]
            else:
                self.stored[key] = edit.document
        return batch

    def quota(self, name: str) -> Any:
        [group] = self.stored[DocumentKey("ClusterQueue", "", name)]["spec"]["resourceGroups"]
        return group["flavors"][0]["resources"][0]["nominalQuota"]

    def names(self, kind: str) -> set[str]:
        return {key.name for key in self.stored if key.kind == kind}


def key(kind: str, name: str) -> DocumentKey:
    return DocumentKey(kind, "", name)


@pytest.fixture
def world() -> World:
    """Three queues of one flavor, listed and stored."""
    made = World()
    made.list_all(f.flavor("gpu"), *(f.queue(name) for name in ("a", "b", "c")))
    assert made.names("ClusterQueue") == {"a", "b", "c"}
    return made


# ---- Edits


def test_writes_of_status_labels_and_annotations_are_not_edits(world: World) -> None:
    written = world.writes
    changed: list[dict[str, Any]] = [{"labels": {"a": "b"}}, {"annotations": {"c": "d"}}, {}]
    for number, extra in enumerate(changed):
        body = {**f.queue("a"), "status": {"pendingWorkloads": number}}
        record = f.record(body, version=100 + number, **extra)
        assert not world.observed.apply([Upserted(record)], world.now + number)
    world.act()
    assert world.writes == written


def test_a_new_generation_with_the_same_content_writes_nothing(world: World) -> None:
    written = world.writes
    world.apply(f.queue("a"))
    assert not world.act(60.0).edits
    assert world.writes == written


def test_an_object_that_is_being_deleted_counts_as_deleted(world: World) -> None:
    record = f.record(f.queue("a"), version=9, deletionTimestamp="2026-01-01T00:00:00Z")
    assert world.observed.apply([Upserted(record)], world.now)
    assert world.observed.objects().keys() >= {key("ClusterQueue", "b")}
    assert key("ClusterQueue", "a") not in world.observed.objects()


def test_the_newer_of_two_objects_of_one_name_counts(world: World) -> None:
    world.observed.apply([Upserted(f.record(f.queue("a", 16), uid="new", version=50))], world.now)
    world.act(SETTLE)
    assert world.quota("a") == 16


# ---- Unknown is not empty


def test_before_a_complete_list_nothing_is_removed_or_written() -> None:
    world = World(stored={key("ClusterQueue", "old"): validate(f.queue("old"))[0]})
    world.observed.apply([Upserted(f.record(f.queue("a")))], world.now)
    assert not world.observed.settled
    assert not world.act(100.0).edits


@pytest.mark.parametrize("missing", [kind.plural for kind in f.KINDS])
def test_a_kind_that_cannot_be_listed_keeps_its_documents(missing: str) -> None:
    bodies = [f.flavor("gpu"), f.queue("a"), f.cohort("c"), f.local_queue("n", "l", "a")]
    stored = {DocumentKey.of(one): one for body in bodies for one in [validate(body)[0]]}
    world = World(stored=dict(stored), confirmed="")
    ends = [d for d in f.completed([]) if isinstance(d, ListCompleted) and d.resource != missing]
    world.observed.apply(ends, world.now)
    before = world.observed.settled
    assert world.observed.fail(missing, "403")
    assert (before, world.observed.settled) == (False, True)
    batch = world.act(100.0)
    if batch.deletion is not None:
        world.confirmed = batch.deletion.id
        world.act(100.0)
    kind = next(one.kind.kind for one in f.KINDS if one.plural == missing)
    kept = {k for k in stored if k.kind == kind}
    if kind == "ClusterQueue":
        kept |= {key("ResourceFlavor", "gpu")}  # which a queue names
    assert world.stored.keys() == kept


def test_after_its_deletions_are_distrusted_a_kind_keeps_its_documents(world: World) -> None:
    world.delete("ClusterQueue", "a", "b", "c")
    world.observed.distrust("clusterqueues", "the CustomResourceDefinition is being deleted")
    batch = world.act(100.0)
    assert not batch.edits
    assert batch.deletion is None
    assert world.observed.faults == {
        "clusterqueues": "the CustomResourceDefinition is being deleted"
    }
    assert not world.observed.answer("clusterqueues"), "an answer is not a complete list"


def test_a_relist_drops_objects_whose_deletion_was_missed(world: World) -> None:
    world.version += 10
    remaining = [f.flavor("gpu"), f.queue("a"), f.queue("b")]
    records = [f.record(one, version=world.version) for one in remaining]
    world.observed.apply(f.completed(records, world.version), world.now)
    world.act(SETTLE)
    assert world.names("ClusterQueue") == {"a", "b"}


# ---- A mass deletion


def test_a_third_of_the_queues_can_be_deleted_and_more_cannot(world: World) -> None:
    world.delete("ClusterQueue", "a")
    assert world.act(SETTLE).deletion is None
    assert world.names("ClusterQueue") == {"b", "c"}
    world.delete("ClusterQueue", "b")
    waits = world.act(SETTLE).deletion
    assert waits is not None
    assert waits.keys == (key("ClusterQueue", "b"),)
    assert world.names("ClusterQueue") == {"b", "c"}
    world.confirmed = waits.id
    world.act()
    assert world.names("ClusterQueue") == {"c"}


def test_other_edits_act_while_a_deletion_waits(world: World) -> None:
    world.delete("ClusterQueue", "a", "b")
    world.apply(f.queue("c", 4), f.queue("d"))
    batch = world.act(SETTLE)
    assert batch.deletion is not None
    assert world.quota("c") == 4
    assert world.names("ClusterQueue") == {"a", "b", "c", "d"}


def test_a_confirmation_is_of_one_set_of_objects_only(world: World) -> None:
    world.delete("ClusterQueue", "a", "b")
    waits = world.act(SETTLE).deletion
    assert waits is not None
    world.confirmed = waits.id
    world.delete("ClusterQueue", "c")
    more = world.act(SETTLE).deletion
    assert more is not None
    assert more.id != waits.id
    assert world.names("ClusterQueue") == {"a", "b", "c"}


def test_objects_that_return_end_the_deletion(world: World) -> None:
    world.delete("ClusterQueue", "a", "b")
    assert world.act(SETTLE).deletion is not None
    world.apply(f.queue("a"), f.queue("b"))
    batch = world.act(SETTLE)
    assert batch.deletion is None
    assert not batch.edits


# ---- Errors


def test_the_last_valid_version_of_an_invalid_object_counts(world: World) -> None:
    world.apply(f.queue("a", "much"), f.queue("b", 4))
    batch = world.act(SETTLE)
    assert "nominalQuota" in batch.faults[key("ClusterQueue", "a")]
    assert (world.quota("a"), world.quota("b")) == (8, 4)
    restarted = World(stored=dict(world.stored))
    batch = restarted.list_all(f.flavor("gpu"), f.queue("a", "much"), f.queue("b", 4), f.queue("c"))
    assert restarted.stored == world.stored, "a restart decides the same"
    assert batch.faults.keys() == {key("ClusterQueue", "a")}
    world.apply(f.queue("a", 12))
    assert not world.act().faults
    assert world.quota("a") == 12


@pytest.mark.parametrize("first", ["x", "y"])
def test_the_newest_edit_of_a_cycle_is_blamed(world: World, first: str) -> None:
    world.apply(f.cohort("x"), f.cohort("y"), f.cohort("z"))
    world.act()
    second = "y" if first == "x" else "x"
    world.apply(f.cohort(first, second), f.cohort("z", "x"), f.cohort(second, first))
    batch = world.act(SETTLE)
    assert batch.faults.keys() == {key("Cohort", second)}
    assert world.stored[key("Cohort", first)]["spec"] == {"parentName": second}
    assert world.stored[key("Cohort", "z")]["spec"] == {"parentName": "x"}
    world.apply(f.cohort(first))
    assert not world.act(SETTLE).faults
    assert world.stored[key("Cohort", second)]["spec"] == {"parentName": first}


def test_an_unknown_flavor_is_an_error_of_the_queue_that_names_it(world: World) -> None:
    world.apply(f.queue("a", flavor="h100"), f.queue("new", flavor="h100"))
    batch = world.act(SETTLE)
    assert batch.faults.keys() == {key("ClusterQueue", "a"), key("ClusterQueue", "new")}
    assert "h100 does not exist" in batch.faults[key("ClusterQueue", "new")]
    assert world.names("ClusterQueue") == {"a", "b", "c"}
    world.apply(f.flavor("h100"))
    assert not world.act(SETTLE).faults
    assert world.names("ClusterQueue") == {"a", "b", "c", "new"}


def test_a_deletion_of_a_flavor_in_use_is_an_error_of_the_deletion(world: World) -> None:
    world.apply(f.flavor("x"), f.flavor("y"), f.flavor("z"))
    world.act()
    world.delete("ResourceFlavor", "gpu")
    batch = world.act(SETTLE)
    assert batch.faults == {
        key("ResourceFlavor", "gpu"): "is deleted, and stays in use while ClusterQueue a names it"
    }
    assert "gpu" in world.names("ResourceFlavor")
    world.apply(*(f.queue(name, flavor="x") for name in ("a", "b", "c")))
    assert not world.act(SETTLE).faults
    assert "gpu" not in world.names("ResourceFlavor")


# ---- No surprise between two edits


def test_an_edit_that_only_permits_more_acts_at_once(world: World) -> None:
    world.apply(f.queue("a", 16), f.local_queue("team", "default", "a"), f.queue("d"))
    batch = world.act()
    assert not batch.waiting
    assert world.quota("a") == 16
    assert world.names("LocalQueue") == {"default"}


def test_an_edit_that_takes_something_acts_when_the_objects_are_quiet(world: World) -> None:
    world.apply(f.queue("a", 4))
    batch = world.act(0.5)
    assert batch.waiting == {key("ClusterQueue", "a")}
    assert batch.act_at == world.observed.last_edit + SETTLE
    assert world.quota("a") == 8
    world.apply(f.queue("b", 9))  # which acts at once, and the objects are not quiet
    world.act()
    assert (world.quota("a"), world.quota("b")) == (8, 9)
    world.act(SETTLE - 0.1)
    assert world.quota("a") == 8
    world.act(0.1)
    assert world.quota("a") == 4


def test_it_acts_after_a_minute_even_if_edits_keep_coming(world: World) -> None:
    world.apply(f.queue("a", 4))
    world.act()
    for number in range(int(LONGEST_WAIT)):
        assert world.quota("a") == 8
        world.apply(f.queue("b", 9 + number))
        world.act(1.0)
    assert world.quota("a") == 4


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["raise first", "lower first"])
def test_quota_that_moves_between_two_queues_is_never_less_in_between(
    world: World, order: tuple[str, str]
) -> None:
    after = {"a": 12, "b": 4}
    for name in order:
        world.apply(f.queue(name, after[name]))
        world.act(1.0)
        assert world.quota("a") + world.quota("b") >= 16
    world.act(SETTLE)
    assert {name: world.quota(name) for name in after} == after


GPU = {"name": "nvidia.com/gpu"}


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"nominalQuota": 9}, True),
        ({"nominalQuota": "8"}, True),
        ({"nominalQuota": "8000m"}, True),
        ({"nominalQuota": 7}, False),
        ({"nominalQuota": 8, "borrowingLimit": 4}, False),
        ({"nominalQuota": 8, "lendingLimit": 8}, False),
    ],
    ids=str,
)
def test_of_quota_only_more_permits_more(change: Mapping[str, Any], more: bool) -> None:
    before = validate(f.queue("a", 8))[0]
    after = validate(f.queue("a", 8, cohortName="all"))[0]
    base = validate(f.queue("a", 8, cohortName="all"))[0]
    assert not permits_more(before, after), "another cohort"
    after["spec"]["resourceGroups"][0]["flavors"][0]["resources"] = [GPU | dict(change)]
    assert permits_more(base, validate(after)[0]) is more


@pytest.mark.parametrize("before", StopPolicy)
@pytest.mark.parametrize("after", StopPolicy)
def test_a_weaker_stop_policy_permits_more(before: StopPolicy, after: StopPolicy) -> None:
    strength = list(StopPolicy)
    old, new = (validate(f.queue("a", stopPolicy=one.value))[0] for one in (before, after))
    assert permits_more(old, new) is (strength.index(after) <= strength.index(before))


def test_an_operation_survives_each_edit_of_the_object(world: World) -> None:
    name = key("ClusterQueue", "a")
    world.stored[name] = with_operation(world.stored[name], StopPolicy.HOLD_AND_DRAIN)
    assert not world.act(SETTLE).edits
    world.apply(f.queue("a", 16, stopPolicy="Hold"))
    world.act(SETTLE)
    assert world.quota("a") == 16
    assert stop_of(world.stored[name]) is StopPolicy.HOLD_AND_DRAIN


# ---- Hostile values


def _hostile() -> dict[str, bytes]:
    meta = {"name": "bad", "uid": "bad", "generation": 1, "resourceVersion": "7"}

    def body(spec: str) -> bytes:
        head = json.dumps({"apiVersion": f.VERSION, "kind": "ClusterQueue", "metadata": meta})
        return f'{head[:-1]}, "spec": {spec}}}'.encode()

    digits = "9" * 400
    quota = json.dumps(f.queue("bad", "QUOTA")["spec"])
    return {
        "a list as spec": body("[]"),
        "a text as spec": body('"x"'),
        "null as spec": body("null"),
        "a number of 400 digits": body(quota.replace('"QUOTA"', digits)),
        "a text of 400 digits": body(quota.replace("QUOTA", digits)),
        "an exponent": body(quota.replace("QUOTA", "1e999999999")),
        "a negative quota": body(quota.replace('"QUOTA"', "-1")),
        "2,000 levels": body('{"resourceGroups": ' + "[" * 2000 + "]" * 2000 + "}"),
        "an unknown field": body('{"whatever": {}}'),
        "another version": body("{}").replace(b"v1beta2", b"v9"),
        "no version": body("{}").replace(b'"apiVersion"', b'"api"'),
        "NUL": body('{"namespaceSelector": {"matchLabels": {"a": "\\u0000"}}}'),
        "a lone surrogate": body('{"cohortName": "\\ud800"}'),
        "two flavors of one name": body(
            quota.replace('"flavors": [', '"flavors": [{"name": "gpu", "resources": []}, ')
        ),
    }


@pytest.mark.parametrize("content", _hostile().values(), ids=_hostile())
def test_a_hostile_object_hurts_only_itself(world: World, content: bytes) -> None:
    record = ConfigurationRecord("ClusterQueue", "", "bad", "bad", 7, 1, False, content)
    world.observed.apply([Upserted(record)], world.now)
    world.apply(f.queue("b", 4))
    batch = world.act(SETTLE)
    assert batch.faults.keys() == {key("ClusterQueue", "bad")}
    assert batch.faults[key("ClusterQueue", "bad")]
    assert world.quota("b") == 4


def test_a_cohort_that_is_its_own_parent_hurts_only_itself(world: World) -> None:
    world.apply(f.cohort("x"), f.cohort("self", "self"), f.cohort("y", "x"))
    batch = world.act()
    assert batch.faults.keys() == {key("Cohort", "self")}
    assert world.names("Cohort") == {"x", "y"}


@pytest.mark.parametrize("reverse", [False, True])
def test_thousands_of_cohorts_in_one_chain_end_in_valid_trees(reverse: bool) -> None:
    world = World()
    chain = [f.cohort(f"c{n}", f"c{n + 1}" if n < 2999 else "c0") for n in range(3000)]
    world.list_all(f.cohort("old"), f.cohort("below", "old"))
    world.apply(*(reversed(chain) if reverse else chain), f.cohort("alone", "old"))
    world.act()
    parents = {k.name: one["spec"].get("parentName") for k, one in world.stored.items()}
    assert not circular_cohorts(parents)
    assert parents.items() >= {("old", None), ("below", "old"), ("alone", "old")}


def test_the_metadata_of_an_object_is_read_without_its_content() -> None:
    raw = json.dumps({"metadata": f.queue("a")["metadata"] | {"uid": "u", "resourceVersion": "3"}})
    record = followed_reader("ClusterQueue")(raw.encode())
    assert (record.uid, record.version, record.generation, record.deleting) == ("u", 3, 0, False)


# ---- Invariants

NAMES = ["a", "b", "c"]
OBJECT = st.one_of(
    st.builds(f.cohort, st.sampled_from(NAMES), st.sampled_from([None, *NAMES])),
    st.builds(f.flavor, st.sampled_from(["gpu", "h100"])),
    st.builds(
        f.queue,
        st.sampled_from(NAMES),
        st.sampled_from([0, 4, 8, "much"]),
        st.sampled_from(["gpu", "h100"]),
    ),
    st.builds(f.local_queue, st.just("team"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
)
STEP = st.one_of(
    OBJECT.map(lambda body: ("apply", body)),
    OBJECT.map(lambda body: ("delete", body)),
    st.sampled_from([("wait", 1.0), ("wait", SETTLE), ("confirm", None)]),
)


@given(st.lists(STEP, max_size=25))
def test_the_catalog_is_valid_at_each_moment_and_follows_in_the_end(
    steps: list[tuple[str, Any]],
) -> None:
    world = World()
    world.list_all()
    objects: dict[DocumentKey, f.Object] = {}
    for what, value in steps:
        batch = world.act(value if what == "wait" else 0.2)
        if what == "confirm" and batch.deletion is not None:
            world.confirmed = batch.deletion.id
        elif what == "apply":
            world.apply(value)
            objects[DocumentKey.of(value)] = value
        elif what == "delete" and (gone := DocumentKey.of(value)) in objects:
            world.delete(gone.kind, gone.name, namespace=gone.namespace)
            del objects[gone]
        _is_valid(world.stored)
    for _ in range(4):  # a deletion that is confirmed can free a flavor for the next one
        batch = world.act(LONGEST_WAIT)
        world.confirmed = batch.deletion.id if batch.deletion is not None else ""
    batch = world.act(LONGEST_WAIT)
    _is_valid(world.stored)
    assert not batch.edits
    for name in world.stored.keys() | objects.keys():
        same = name in objects and _content(objects[name]) == world.stored.get(name)
        assert same or name in batch.faults, name
    again = World(stored=dict(world.stored), observed=world.observed)
    assert not again.act(LONGEST_WAIT).edits, "a restart decides the same"


def _content(body: f.Object) -> Document | None:
    try:
        return validate(body)[0]
    except Exception:  # noqa: BLE001 - an invalid object has none
        return None


def _is_valid(stored: Mapping[DocumentKey, Document]) -> None:
    config = build(stored.values(), 1, strict=True)
    flavors = {
        q.flavor for one in config.cluster_queues.values() for g in one.groups for q in g.flavors
    }
    assert flavors <= config.flavors.keys()
