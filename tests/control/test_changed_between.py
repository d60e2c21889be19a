"""The object changes between snapshot, commit, start patch and pin. The gang only starts with the planned numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any

import pytest

from queuectl.domain.errors import WriteRefused
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, Purpose, State
from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_lifecycle import until_reason
from tests.control.test_refused_writes import purpose
from tests.doubles.admission import templates
from tests.doubles.cluster import Written
from tests.doubles.known import KNOWN

Document = dict[str, Any]
KINDS = ("Job", "PyTorchJob", "RayCluster", "GangRun")
"""Each way to write a start: merge patches of a Job, a map of replicas and one template, and a JSON patch of a list.

The operator of JobSets, which have a list too, refuses most of the changes.
"""
LOW = 10  # the value of class low in the rig


def requests(document: Document) -> None:
    for _, template in templates(document):
        for side in template["spec"]["containers"][0]["resources"].values():
            side["nvidia.com/gpu"] = "4"


def counts(document: Document) -> None:
    spec = document["spec"]
    match document["kind"]:
        case "Job":
            spec["parallelism"] = spec["completions"] = 1
        case "PyTorchJob":
            spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
        case "RayCluster":
            spec["workerGroupSpecs"][0]["replicas"] = 2
        case _:
            spec["workers"] = 1


def topology(document: Document) -> None:
    for _, template in templates(document):
        annotations = template["metadata"].setdefault("annotations", {})
        annotations["queuectl.dev/podset-required-topology"] = "topology.queuectl.dev/rack"


def selector(document: Document) -> None:
    for _, template in templates(document):
        template["spec"]["nodeSelector"] = {"topology.queuectl.dev/block": "b0"}


def tolerations(document: Document) -> None:
    for _, template in templates(document):
        template["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]


def priority(document: Document) -> None:
    document["metadata"]["labels"]["queuectl.dev/priority-class"] = "high"


def labels(document: Document) -> None:
    document["metadata"]["labels"]["user"] = "bob"


def queue(document: Document) -> None:
    document["metadata"]["labels"]["queuectl.dev/queue-name"] = "other"


def order(document: Document) -> None:
    """The podsets of a list get other indexes. A JSON patch addresses them by index."""
    spec = document["spec"]
    if document["kind"] == "RayCluster":
        [group] = spec["workerGroupSpecs"]
        first = deepcopy(group) | {"groupName": "first", "replicas": 1}
        del first["template"]["metadata"]["labels"]  # those of queuectl cannot be copied
        spec["workerGroupSpecs"] = [first, group]
    else:
        labels(document)


CHANGES: tuple[Callable[[Document], None], ...] = (
    requests, counts, topology, selector, tolerations, priority, labels, queue, order,
)  # fmt: skip


def edit(world: Rig, kind: str, change: Callable[[Document], None]) -> bool:
    """Change the object as its user. Returns whether the API server accepts it."""
    new = deepcopy(world.cluster.server.get(KNOWN[kind].plural, "default", change.__name__))
    change(new)
    try:
        world.cluster.user_patch(kind, "default", change.__name__, new)
    except WriteRefused:
        return False
    return True


def requests_of(pods: list[PodRecord]) -> set[int]:
    return {pod.requests["nvidia.com/gpu"] for pod in pods}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_change_during_planning_leads_to_another_plan(
    database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change it between snapshot and commit: the gang starts as the last plan has it."""
    names = {change.__name__: change for change in CHANGES}
    async with rig(database_url, 2 * len(CHANGES) + 2, kinds=KNOWN) as world:
        here = asyncio.get_running_loop()
        edited: dict[str, bool] = {}
        planned: dict[str, Workload] = {}

        async def change_all(started: list[str]) -> None:
            for name in started:
                if name not in edited:
                    edited[name] = edit(world, kind, names[name])

        def changed_meanwhile(snapshot: Snapshot, *rest: Any) -> Plan:
            made = plan(snapshot, *rest)
            asked = {p.workload.uid: p.workload for p in snapshot.pending}
            started = [asked[a.uid] for a in made.admitted]
            planned.update((one.name, one) for one in started)
            change = change_all([one.name for one in started])
            asyncio.run_coroutine_threadsafe(change, here).result()
            return made

        monkeypatch.setattr("queuectl.control.checked_plan.plan", changed_meanwhile)
        async for name, uid, entry in running(world, kind):
            job, asked = world.cluster.job(uid), planned[name]
            assert job.podsets == asked.podsets, name
            assert (entry.attempt, entry.priority) == (1, asked.priority), name
            assert len(attempt(world, uid)) == job.pods, name
        assert planned["priority"].priority > planned["labels"].priority
        assert [name for name, done in edited.items() if not done] == ["queue"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_change_before_the_start_is_refused_or_planned_again(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2 * len(CHANGES) + 2, kinds=KNOWN) as world:
        edited = edits_before(world, kind, Purpose.START)
        async for name, uid, entry in running(world, kind):
            job, pods = world.cluster.job(uid), attempt(world, uid)
            if edited[name]:
                history = [line.reason.code for line in await world.store.history(uid)]
                assert Code.CHANGED_OUTSIDE in history, name
                assert entry.attempt == 2, name
                assert len(pods) == job.pods, name
                asked = {p.shape.requests["nvidia.com/gpu"] for p in job.podsets}
                assert requests_of(pods) == asked, name
        assert [name for name, done in edited.items() if not done] == ["queue"]


@pytest.mark.parametrize("kind", KINDS)
async def test_after_the_start_only_fields_without_effect_on_the_placement_can_change(
    database_url: str, kind: str
) -> None:
    """Change it right before the first pin."""
    async with rig(database_url, 2 * len(CHANGES) + 2, kinds=KNOWN) as world:
        edited = edits_before(world, kind, Purpose.PIN)
        async for name, uid, entry in running(world, kind):
            pods = attempt(world, uid)
            assert (entry.attempt, len(pods), requests_of(pods)) == (1, 2, {8}), name
            assert entry.priority == LOW, "a new class counts after a requeue"
        harmless = {"priority", "labels"} | ({"order"} if kind != "RayCluster" else set())
        assert {name for name, done in edited.items() if done} == harmless


async def running(world: Rig, kind: str) -> AsyncIterator[tuple[str, str, Entry]]:
    """Submit a gang for each change, all at once. Yields name, uid and entry of each gang after it runs."""
    uids = {c.__name__: world.cluster.submit(gang(kind, c.__name__, 2)) for c in CHANGES}
    for name, uid in uids.items():
        yield name, uid, await world.until_state(uid, State.RUNNING)


def edits_before(world: Rig, kind: str, last: Purpose) -> dict[str, bool]:
    """Change each object right before a write of its gang. The result shows whether each change was accepted."""
    edited: dict[str, bool] = {}

    def before_write(write: Written) -> int | None:
        for change in CHANGES:
            name = change.__name__
            if write.name.startswith(name) and name not in edited and purpose(write) is last:
                edited[name] = edit(world, kind, change)
        return None

    world.cluster.refuses = before_write
    return edited


def attempt(world: Rig, uid: str) -> list[PodRecord]:
    """The live pods of the current attempt."""
    job = world.cluster.job(uid)
    return [p for p in live(world.cluster.pods_of(uid)) if p.attempt == job.attempt]


@pytest.mark.parametrize("kind", KINDS)
async def test_pods_that_request_more_than_was_planned_stay_gated(
    database_url: str, kind: str
) -> None:
    """A webhook raises the requests, or the template changed between the start and the creation of the pods."""
    async with rig(database_url, 2, kinds=KNOWN) as world:
        grown: list[str] = []

        def grow(write: Written) -> int | None:
            if purpose(write) is Purpose.PIN and not grown:
                grown.append(write.name)
                pod = world.cluster.server.get("pods", "default", write.name)
                world.cluster.server.edit("pods", pod, larger)
            return None

        world.cluster.refuses = grow
        document = gang(kind, "train", 2)
        for _, template in templates(dict(document)):
            for side in template["spec"]["containers"][0]["resources"].values():
                side["nvidia.com/gpu"] = "4"
        uid = world.cluster.submit(document)
        entry = await until_reason(world, uid, State.PENDING, Code.EXCEEDS_MAX_QUOTA)
        assert entry.attempt == 1
        assert live(world.cluster.pods_of(uid)) == []


def larger(pod: Document) -> None:
    for side in pod["spec"]["containers"][0]["resources"].values():
        side["nvidia.com/gpu"] = "16"
