"""The object changes between snapshot, commit, start patch and pin: the gang never starts with other numbers than planned."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from queuectl.domain.errors import WriteRefused
from queuectl.domain.ledger import Purpose, State
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_refused_writes import purpose
from tests.doubles.admission import templates
from tests.doubles.cluster import Written

Document = dict[str, Any]
KINDS = ("Job", "PyTorchJob")


def requests(document: Document) -> None:
    for _, template in templates(document):
        for side in template["spec"]["containers"][0]["resources"].values():
            side["nvidia.com/gpu"] = "4"


def counts(document: Document) -> None:
    if document["kind"] == "Job":
        document["spec"]["parallelism"] = document["spec"]["completions"] = 1
    else:
        document["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2


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


CHANGES: tuple[Callable[[Document], None], ...] = (
    requests, counts, topology, selector, tolerations, priority, labels, queue,
)  # fmt: skip


def edit(world: Rig, kind: str, change: Callable[[Document], None]) -> bool:
    """Change the object as its user; whether the API server lets it through."""
    resource = "jobs" if kind == "Job" else "pytorchjobs"
    new = deepcopy(world.cluster.server.get(resource, "default", change.__name__))
    change(new)
    try:
        world.cluster.user_patch(kind, "default", change.__name__, new)
    except WriteRefused:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [Purpose.START, Purpose.PIN])
async def test_a_change_is_refused_or_planned_again(
    database_url: str, kind: str, last: Purpose
) -> None:
    """``last``: the write right before which the object changes."""
    async with rig(database_url, 2 * len(CHANGES)) as world:
        edited: dict[str, bool] = {}

        def just_before(write: Written) -> int | None:
            for change in CHANGES:
                name = change.__name__
                if write.name.startswith(name) and name not in edited and purpose(write) is last:
                    edited[name] = edit(world, kind, change)
            return None

        world.cluster.refuses = just_before
        uids = {c.__name__: world.cluster.submit(gang(kind, c.__name__, 2)) for c in CHANGES}
        for name, uid in uids.items():
            entry = await world.until_state(uid, State.RUNNING)
            job = world.cluster.job(uid)
            pods = [p for p in live(world.cluster.pods_of(uid)) if p.attempt == job.attempt]
            gpus = {p.requests["nvidia.com/gpu"] for p in pods}
            if last is Purpose.START and edited[name]:
                history = [line.reason.code for line in await world.store.history(uid)]
                assert Code.CHANGED_OUTSIDE in history, name
                assert entry.attempt == 2, name
                assert len(pods) == job.pods, name
                assert gpus == {p.shape.requests["nvidia.com/gpu"] for p in job.podsets}, name
            else:
                assert (entry.attempt, len(pods), gpus) == (1, 2, {8}), name
        if last is Purpose.START:
            assert [name for name, done in edited.items() if not done] == ["queue"]


@pytest.mark.parametrize("kind", KINDS)
async def test_pods_that_ask_for_more_than_was_planned_are_never_let_go(
    database_url: str, kind: str
) -> None:
    """A webhook raises them, or the template grew between the start and the creation of the pods."""
    async with rig(database_url, 2) as world:
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
        entry = await world.until_state(uid, State.BACKOFF)
        assert "(PodsLargerThanAsked)" in entry.reason.message
        assert live(world.cluster.pods_of(uid)) == []


def larger(pod: Document) -> None:
    for side in pod["spec"]["containers"][0]["resources"].values():
        side["nvidia.com/gpu"] = "8"
