"""LeaderWorkerSets: the request of a group, and its record while the operator creates its pods again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from queuectl.cluster.resources import watched
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.records import Deleted, Upserted
from queuectl.objects import keys
from queuectl.objects.documents import read_documents
from queuectl.objects.kinds import KINDS, leaderworkerset
from queuectl.objects.kinds.groups import SetGroup
from queuectl.offline.inputs import read_snapshot
from queuectl.state.mirror import Mirror
from tests.support.leaderworkersets import leaderworkerset as manifest
from tests.support.work import lines_run

Document = dict[str, Any]
PODS = PodSetManifest(3, gpus=8)
LEADER = PodSetManifest(1, gpus=4)
NUMA_POLICY = "queuectl.dev/podset-numa-policy"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def record_of(document: Document) -> JobRecord:
    return leaderworkerset.read_set(msgspec.convert(document, leaderworkerset.WireSet))


def podsets_of(record: JobRecord) -> list[tuple[str, int, int]]:
    return [(p.name, p.count, p.shape.requests["nvidia.com/gpu"]) for p in record.podsets]


@pytest.mark.parametrize(
    ("pods", "leader", "expected"),
    [
        (PODS, None, [("main", 3, 8)]),
        (PODS, LEADER, [("leader", 1, 4), ("worker", 2, 8)]),
        (PodSetManifest(1, gpus=8), LEADER, [("leader", 1, 4)]),
    ],
    ids=["one template", "two templates", "a leader alone"],
)
def test_the_podsets_of_a_group_are_those_of_its_templates(
    pods: PodSetManifest, leader: PodSetManifest | None, expected: list[tuple[str, int, int]]
) -> None:
    record = record_of(manifest("s", "n", pods, leader=leader, replicas=4))
    assert (podsets_of(record), record.groups, record.error) == (expected, 4, None)


def in_template(document: Document, **labels: str) -> Document:
    template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["metadata"].setdefault("labels", {}).update(labels)
    return document


@pytest.mark.parametrize(
    ("document", "message", "unsupported"),
    [
        (manifest("s", "n", PODS, annotations={EXCLUSIVE: "rack"}), "pod affinity|affinity", True),
        (
            in_template(manifest("s", "n", PODS), **{keys.PREFIX + keys.POD_GROUP: "g"}),
            r"workerTemplate\.metadata\.labels: queuectl\.dev/pod-group-name",
            False,
        ),
        (
            in_template(manifest("s", "n", PODS, queue=None), **{keys.QUEUE_LABEL: "main"}),
            "belongs on the LeaderWorkerSet",
            False,
        ),
        (manifest("s", "n", PodSetManifest(0)), r"size: 0 is not a positive number", False),
    ],
    ids=["exclusive topology", "another group", "a queue in a template alone", "no pods"],
)
def test_a_set_that_cannot_be_honored_has_the_reason(
    document: Document, message: str, unsupported: bool
) -> None:
    record = record_of(document)
    assert record.queue == "main"
    assert record.unsupported is unsupported
    with pytest.raises(ValueError, match=message):
        raise ValueError(record.error)


WATCHED = {one.name: one for one in watched()}


def _seen(resource: str, document: Document) -> Upserted:
    record = WATCHED[resource].read(msgspec.json.encode(document))
    assert record is not None
    return Upserted(record)


class World:
    """A mirror with a set of one group, and the pods of this group."""

    def __init__(self, pods: PodSetManifest = PODS, **more: Any) -> None:
        self.mirror = Mirror.of(KINDS)
        self.version = 10
        self.document = manifest("s", "n", pods, **more)
        self.set()

    def set(self, uid: str = "set", **spec: Any) -> None:
        self.version += 1
        self.document["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.document["spec"] |= spec
        self.mirror.apply([_seen("leaderworkersets", self.document)])

    def pods(self, generation: str, *indexes: int, attempt: int = 0, workload: str = "") -> None:
        """Pods as the operator creates them; as queuectl releases them, with an attempt."""
        self.mirror.apply(
            [_seen("pods", self._pod(generation, index, attempt, workload)) for index in indexes]
        )

    def delete(self, generation: str, *indexes: int) -> None:
        self.mirror.apply(
            [Deleted("pods", f"{generation}-{index}", self.version) for index in indexes]
        )

    def enter(self, state: State, uid: str = "") -> None:
        """The entry of the group in the ledger is in this state."""
        entry = Entry(uid or self.group().uid, "LeaderWorkerSet", "n", "s-0", state, attempt=1)
        self.mirror.recognize([entry])

    def group(self) -> JobRecord:
        [record] = self.mirror.jobs.values()
        return record

    def seats(self) -> list[tuple[str, int | None]]:
        return sorted((p.podset, p.rank) for p in self.mirror.pods_of(self.group()))

    def _pod(self, generation: str, index: int, attempt: int, workload: str) -> Document:
        self.version += 1
        templates = self.document["spec"]["leaderWorkerTemplate"]
        leads = index == 0 and "leaderTemplate" in templates
        template = templates["leaderTemplate" if leads else "workerTemplate"]
        labels = {keys.QUEUE_LABEL: "main", **leaderworkerset.labels_of("s", 0, index)}
        if attempt:
            podset = "leader" if leads else "worker" if "leaderTemplate" in templates else "main"
            labels |= {keys.ATTEMPT_LABEL: str(attempt), keys.WORKLOAD_LABEL: workload}
            labels[keys.PODSET_LABEL] = podset
        gates = [] if attempt else [{"name": keys.GATE}]
        document: Document = {
            "metadata": {
                "name": f"s-0-{index}" if index else "s-0",
                "namespace": "n",
                "uid": f"{generation}-{index}",
                "resourceVersion": str(self.version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": labels,
                "annotations": {keys.SUBMITTED_BY: "a controller"},
            },
            "spec": {**template["spec"], "schedulingGates": gates},
            "status": {"phase": "Running" if attempt else "Pending"},
        }
        return document


def test_a_group_waits_for_its_pods_and_asks_for_what_its_set_names() -> None:
    world = World(leader=LEADER)
    world.pods("a", 0)
    waits = world.group()
    assert (waits.kind, waits.name, waits.suspended) == ("LeaderWorkerSet", "s-0", True)
    assert waits.awaits == "1 of 3 pods of the group exist"
    assert podsets_of(waits) == [("leader", 1, 4), ("worker", 2, 8)]
    world.pods("a", 1, 2)
    assert world.group().awaits == ""
    assert world.seats() == [("leader", 0), ("worker", 0), ("worker", 1)]


def test_a_group_whose_workers_come_after_its_leader_waits_for_the_leader_alone() -> None:
    world = World(leader=LEADER, startupPolicy="LeaderReady")
    world.pods("a", 0)
    group = world.group()
    assert (group.awaits, group.staged, group.pods) == ("", True, 3)


@pytest.mark.parametrize("moment", ["without pods", "with new pods"])
def test_a_group_that_runs_by_its_entry_runs_on_while_its_pods_are_made_again(moment: str) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    uid = world.group().uid
    world.pods("a", 0, 1, 2, attempt=1, workload=uid)
    world.enter(State.RUNNING)
    world.delete("a", 0, 1, 2)
    if moment == "with new pods":
        world.pods("b", 0, 1, 2)
    group = world.group()
    assert (group.uid, group.suspended, group.attempt, group.absent) == (uid, False, 1, False)
    assert podsets_of(group) == [("main", 3, 8)]


def test_a_group_that_is_evicted_waits_when_its_pods_are_made_again() -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    uid = world.group().uid
    world.pods("a", 0, 1, 2, attempt=1, workload=uid)
    world.enter(State.RUNNING)
    world.enter(State.EVICTING)
    world.delete("a", 0, 1, 2)
    assert (world.group().suspended, world.group().absent) == (True, False)
    world.pods("b", 0, 1, 2)
    again = world.group()
    assert (again.uid, again.suspended, again.awaits) == (uid, True, "")


@pytest.mark.parametrize("end", ["it is removed by a change of replicas", "its set is deleted"])
def test_a_group_without_pods_ends_when_its_set_does_not_name_it(end: str) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    uid = world.group().uid
    world.pods("a", 0, 1, 2, attempt=1, workload=uid)
    world.enter(State.RUNNING)
    if end == "its set is deleted":
        world.mirror.apply([Deleted("leaderworkersets", "set", world.version)])
    else:
        world.set(replicas=0)
    assert world.group().suspended is False
    world.delete("a", 0, 1, 2)
    assert world.mirror.jobs == {}
    world.enter(State.FINISHED, uid=uid)
    world.set(replicas=1)
    world.pods("b", 0, 1, 2)
    assert world.group().uid not in ("", uid)


def created_again(world: World) -> None:
    """Another user deletes the set and creates one of its name in another queue."""
    world.mirror.apply([Deleted("leaderworkersets", "set", world.version)])
    world.document["metadata"]["labels"][keys.QUEUE_LABEL] = "other"
    world.document["metadata"].setdefault("annotations", {})[keys.SUBMITTED_BY] = "bob"
    world.set("again")


@pytest.mark.parametrize("overlap", [False, True])
def test_a_set_that_is_created_again_does_not_take_over_the_gangs_of_the_old_one(
    *, overlap: bool
) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    before = world.group()
    world.pods("a", 0, 1, 2, attempt=1, workload=before.uid)
    world.enter(State.RUNNING)
    created_again(world)
    if overlap:
        world.pods("b", 0)
    ends = world.group()
    assert (ends.uid, ends.submitter, ends.queue) == (before.uid, before.submitter, "main")
    assert {pod.uid for pod in world.mirror.pods_of(ends)} == {"a-0", "a-1", "a-2"}
    assert podsets_of(ends) == [("main", 3, 8)]
    world.delete("a", 0, 1, 2)
    assert before.uid not in world.mirror.jobs
    world.enter(State.FINISHED, uid=before.uid)
    world.pods("b", *range(3)[overlap:])
    group = world.group()
    assert group.uid.startswith("again.000.")
    assert (group.submitter, group.suspended, group.attempt) == ("bob", True, 0)
    assert len(list(world.mirror.pods_of(group))) == 3


def test_a_waiting_group_ends_when_another_set_has_the_name_of_its_set() -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    uid = world.group().uid
    world.enter(State.PENDING)
    created_again(world)
    assert uid not in world.mirror.jobs
    world.enter(State.FINISHED, uid=uid)
    world.delete("a", 0, 1, 2)
    world.pods("b", 0, 1, 2)
    assert world.group().uid.startswith("again.000.")


def test_a_new_process_knows_the_groups_of_a_set_before_it_knows_the_set() -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    uid = world.group().uid
    world.pods("a", 0, 1, attempt=1, workload=uid)
    entry = Entry(uid, "LeaderWorkerSet", "n", "s-0", State.RUNNING, attempt=1)
    world.mirror = Mirror.of(KINDS)
    world.mirror.recognize([entry], read=True, all_of_them=True)
    world.pods("a", 0, 1, attempt=1, workload=uid)
    world.pods("a", 2)
    world.set()
    group = world.group()
    assert (group.uid, len(list(world.mirror.pods_of(group)))) == (uid, 3)


def test_pods_without_their_set_are_not_a_gang() -> None:
    world = World()
    world.mirror.apply([Deleted("leaderworkersets", "set", world.version)])
    world.pods("a", 0, 1, 2)
    assert world.mirror.jobs == {}


def test_the_status_of_a_set_changes_no_group() -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    world.mirror.edited.clear()
    world.mirror.touched.clear()
    world.set()
    assert (world.mirror.edited, world.mirror.touched) == (set(), set())


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records of groups that are made, and the pods that get their podset."""
    done: list[str] = []
    assemble, seated = SetGroup.assemble, SetGroup.seated

    def assembled(group: SetGroup, *, in_ledger: bool) -> JobRecord | None:
        done.append(group.key.name)
        return assemble(group, in_ledger=in_ledger)

    def seat(group: SetGroup, pod: PodRecord) -> PodRecord:
        done.append(pod.name)
        return seated(group, pod)

    monkeypatch.setattr(SetGroup, "assemble", assembled)
    monkeypatch.setattr(SetGroup, "seated", seat)
    return done


def test_a_label_of_a_set_changes_the_record_of_its_group_and_none_of_its_pods(
    work: list[str],
) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    work.clear()
    world.document["metadata"]["labels"]["stage"] = "test"
    world.set()
    assert world.group().label("stage") == "test"
    assert work == ["s-0"]


def test_another_number_of_groups_changes_only_those_that_it_adds_or_removes(
    work: list[str],
) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    world.enter(State.RUNNING)
    work.clear()
    world.set(replicas=3)
    world.set(replicas=1)
    assert not work
    world.delete("a", 0, 1, 2)
    assert world.mirror.jobs
    world.set(replicas=0)
    assert not world.mirror.jobs


def test_an_annotation_of_a_set_that_no_group_has_changes_none(work: list[str]) -> None:
    world = World()
    world.pods("a", 0, 1, 2)
    work.clear()
    annotations = world.document["metadata"].setdefault("annotations", {})
    annotations[keys.STATUS_ANNOTATION] = "a text of its user"
    world.set()
    assert not work


def test_queuectl_plan_reads_a_set_as_the_controller_does() -> None:
    text = yaml.safe_dump(manifest("s", "n", PODS, leader=LEADER, replicas=2))
    found = read_snapshot(read_documents(text, "-")).snapshot.pending
    assert [(one.workload.kind, one.workload.name) for one in found] == [
        ("LeaderWorkerSet", "s-0"),
        ("LeaderWorkerSet", "s-1"),
    ]
    assert [[(p.name, p.count) for p in one.workload.podsets] for one in found] == [
        [("leader", 1), ("worker", 2)]
    ] * 2


def test_queuectl_plan_ignores_a_set_without_a_queue() -> None:
    text = yaml.safe_dump(manifest("s", "n", PODS, queue=None))
    assert read_snapshot(read_documents(text, "-")).snapshot.pending == ()


def test_the_late_deletion_of_a_set_does_not_remove_its_successor_of_the_same_name() -> None:
    world = World()
    successor = {**world.document["metadata"], "uid": "again", "resourceVersion": "50"}
    world.mirror.apply([_seen("leaderworkersets", {**world.document, "metadata": successor})])
    world.mirror.apply([Deleted("leaderworkersets", "set", 51)])
    world.pods("new", 0, 1, 2)
    assert podsets_of(world.group()) == [("main", 3, 8)]
    assert world.group().error is None


@pytest.mark.parametrize("leader", [None, LEADER], ids=["one template", "two templates"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "new process"])
def test_an_error_in_a_new_template_changes_no_group_that_runs(
    leader: PodSetManifest | None, *, restarted: bool
) -> None:
    world = World(leader=leader)
    world.pods("a", 0, 1, 2)
    waits = world.group()
    world.pods("a", 0, 1, 2, attempt=1, workload=waits.uid)
    world.enter(State.RUNNING)
    asks = podsets_of(waits)
    assert podsets_of(world.group()) == asks
    if restarted:
        world.mirror = Mirror.of(KINDS)
        world.pods("a", 0, 1, 2, attempt=1, workload=waits.uid)
        world.enter(State.RUNNING, waits.uid)
    templates = world.document["spec"]["leaderWorkerTemplate"]
    workers = templates["workerTemplate"]
    metadata = workers["metadata"] | {"annotations": {NUMA_POLICY: "x"}}
    world.set(
        leaderWorkerTemplate={**templates, "workerTemplate": {**workers, "metadata": metadata}}
    )
    runs = world.group()
    assert (podsets_of(runs), runs.error) == (asks, None)
    world.enter(State.EVICTING)
    world.pods("b", 0, 1, 2)
    world.delete("a", 0, 1, 2)
    again = world.group()
    assert again.suspended
    assert again.error is not None
    assert "podset-numa-policy" in again.error


@pytest.mark.parametrize("attempt", [0, 1], ids=["waits", "runs"])
@pytest.mark.parametrize("leader", [None, LEADER], ids=["one template", "two templates"])
def test_an_event_of_a_pod_costs_the_same_however_many_pods_its_group_has(
    leader: PodSetManifest | None, attempt: int
) -> None:
    def events(number: int) -> int:
        world = World(PodSetManifest(number, gpus=8), leader=leader)
        world.pods("a", *range(number))
        uid = world.group().uid

        def change() -> None:
            world.pods("a", 0, 1, 2, attempt=attempt, workload=uid)

        change()
        return lines_run(change)

    assert events(400) < 1.2 * events(100)
