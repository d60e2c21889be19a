"""Hand-over of each kind, and the writes while jobs, namespaces and controllers change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import msgspec
import pytest

from queuectl.cli import handover
from queuectl.cli.errors import CommandFailed
from queuectl.cli.handover import HandOver, write_each
from queuectl.cluster.client import Api
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.handover.gangs import Adopted, HandoverObjects, Stopped, fates
from queuectl.handover.podsets import HANDED_OVER
from queuectl.handover.trainjobs import TRAINJOB
from queuectl.objects import keys
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.trainjob import jobset_of
from queuectl.objects.kueue_names import workload_name
from tests.kinds.entries import ENTRIES
from tests.support.kueue import QUEUE_LABEL
from tests.support.work import lines_run
from tests.unit.test_handover import SPACE, cluster, config, job, node, pod

Document = dict[str, Any]
UID = "job-uid"
ENTRY_OF = {one.kind: one for one in ENTRIES if one.kind in HANDED_OVER - {"Job"}}


def started_by_kueue(kind: str) -> HandoverObjects:
    """A running job of 4 pods. Its pods name only the Workload of Kueue, and another object controls them."""
    *others, document = deepcopy(ENTRY_OF[kind].documents("train", SPACE, PodSetManifest(4), None))
    document["metadata"] |= {"uid": UID, "labels": {QUEUE_LABEL: "team"}}
    jobs = {kind: [document]}
    runtimes = {}
    if kind == TRAINJOB:
        runtimes = {("TrainingRuntime", SPACE, "train"): others[0]}
        jobs["JobSet"] = [jobset_of(document, others[0])]
    name = workload_name(kind, KINDS[kind].group, "train", UID)
    counts = {place: number for place, number in _counts(jobs).items() if number}
    pods = [
        of_kueue(f"{podset}-{number}", podset, name)
        for podset, count in counts.items()
        for number in range(count)
    ]
    return cluster(jobs=jobs, pods=pods, nodes={"h0": node("h0")}, runtimes=runtimes)


def _counts(jobs: dict[str, list[Document]]) -> dict[str, int]:
    kind = KINDS["JobSet" if "JobSet" in jobs else next(iter(jobs))]
    [document] = jobs[kind.kind]
    record = kind.read(msgspec.convert(document, kind.wire, strict=False))
    assert record.error is None, record.error
    return {one.name: one.count for one in record.podsets}


def of_kueue(name: str, podset: str, workload: str) -> Document:
    document = pod(0, "h0")
    document["metadata"] = {
        "name": name,
        "namespace": SPACE,
        "uid": name,
        "labels": {keys.KUEUE_PODSET_LABEL: podset, keys.JOB_NAME_LABEL: "child"},
        "annotations": {keys.KUEUE_WORKLOAD: workload},
        "ownerReferences": [{"kind": "Job", "name": "child", "uid": "child", "controller": True}],
    }
    return document


def test_a_gang_of_each_kind_that_kueue_started_and_queuectl_adopted_is_handed_over() -> None:
    assert ENTRY_OF.keys() | {"Job"} == HANDED_OVER
    for kind in ENTRY_OF:
        [fate] = fates(started_by_kueue(kind))
        assert isinstance(fate, Adopted), (kind, fate)
        podsets = fate.workload["spec"]["podSets"]
        assigned = fate.workload["status"]["admission"]["podSetAssignments"]
        assert sum(one["count"] for one in podsets) == len(fate.pods) == 4, kind
        assert [one["name"] for one in podsets] == [one["name"] for one in assigned], kind
        assert all(one["template"]["spec"]["containers"] for one in podsets), kind


def test_a_job_that_a_rayservice_controls_is_not() -> None:
    """Kueue queues the RayService."""
    given = started_by_kueue("RayCluster")
    [document] = given.jobs["RayCluster"]
    owner = {"kind": "RayService", "name": "s", "uid": "s", "controller": True}
    cast(Document, document)["metadata"]["ownerReferences"] = [owner]
    [fate] = fates(given)
    assert isinstance(fate, Stopped)
    assert "Kueue queues its RayService" in fate.reason


def test_a_jobset_of_another_trainjob_or_namespace_is_not_that_of_the_trainjob() -> None:
    for changes in ({"namespace": "other"}, {"name": "forged"}):
        given = started_by_kueue(TRAINJOB)
        [jobset] = given.jobs["JobSet"]
        cast(Document, jobset)["metadata"] |= changes
        [fate] = fates(given)
        assert isinstance(fate, Stopped), changes
        assert "its JobSet does not exist" in fate.reason


class FakeApi:
    """An API server that answers writes, and fails for some paths."""

    def __init__(self, failing: Mapping[str, Exception] | None = None) -> None:
        self.failing = failing or {}
        self.writes: list[tuple[str, str]] = []
        self.kueue = False

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        if method == "GET":
            if "kueue-" in path and not self.kueue:
                raise ObjectGone(path)
            if path.endswith("kueue.x-k8s.io"):  # the lease
                raise ObjectGone(path)
            return b'{"items": [], "metadata": {}}'
        for part, error in self.failing.items():
            if part in path:
                raise error
        self.writes.append((method, path))
        return b'{"metadata": {"resourceVersion": "8"}}'


async def written(api: FakeApi, *jobs: Adopted) -> dict[str, str]:
    planned = HandOver(jobs, {}, ())
    return {
        fate.owner.namespace: error
        async for fate, error in write_each(cast(Api, api), planned, jobs)
    }


def gang_in(namespace: str) -> Adopted:
    document, pods = job(), [pod(0, "h1"), pod(1, "h0")]
    for one in (document, *pods):
        one["metadata"]["namespace"] = namespace
    queues = build([*config(), m.local_queue(namespace, "team", "pool")], 1)
    [fate] = fates(cluster(document, pods=pods, config=queues))
    assert isinstance(fate, Adopted), fate
    return fate


def test_one_job_that_cannot_be_written_does_not_stop_the_others() -> None:
    failing = {
        "namespaces/dying/workloads": WriteRefused("403: it is being terminated"),
        "namespaces/deleted/jobs": ObjectGone("404"),
        "namespaces/lost/pods/train-0": ObjectGone("404"),
    }
    api = FakeApi(failing)
    names = ("dying", "deleted", "lost", "kept")
    errors = asyncio.run(written(api, *map(gang_in, names)))
    assert errors == {
        "dying": "403: it is being terminated",
        "deleted": "it was deleted in the meantime",
        "lost": "",
        "kept": "",
    }
    assert not any("deleted" in path for _, path in api.writes), "no Workload without its job"
    assert any("lost/pods/train-1" in path for _, path in api.writes)


def test_a_kueue_that_starts_meanwhile_ends_the_command_and_a_second_run_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "_CHECK_SECONDS", 0.0)
    api, jobs = FakeApi(), [gang_in("a"), gang_in("b")]

    async def run() -> None:
        planned = HandOver(tuple(jobs), {}, ())
        async for _ in write_each(cast(Api, api), planned, jobs):
            api.kueue = True

    with pytest.raises(CommandFailed, match="the webhooks of Kueue exist") as failed:
        asyncio.run(run())
    assert "1 job handled" in str(failed.value)
    assert not any("namespaces/b/" in path for _, path in api.writes)
    api.kueue = False
    assert asyncio.run(written(api, *jobs)) == {"a": "", "b": ""}
    assert any("namespaces/b/workloads" in path for _, path in api.writes)


def test_the_number_of_running_gangs_is_a_factor_of_the_work_and_no_square() -> None:
    few, many = (lines_run(partial(judged, number)) for number in (50, 200))
    assert many < 5 * few


def judged(number: int) -> None:
    """Judge so many running gangs."""
    jobs, pods = [], []
    for position in range(number):
        document = job(f"j{position}")
        document["metadata"]["uid"] = document["spec"]["template"]["metadata"]["labels"][
            keys.WORKLOAD_LABEL
        ] = f"u{position}"
        jobs.append(document)
        for rank in range(2):
            one = pod(rank, f"h{rank}")
            one["metadata"] |= {"name": f"j{position}-{rank}", "uid": f"p{position}-{rank}"}
            one["metadata"]["ownerReferences"][0]["uid"] = f"u{position}"
            pods.append(one)
    gangs = list(fates(cluster(*jobs, pods=pods)))
    assert all(isinstance(gang, Adopted) for gang in gangs)
    assert len(gangs) == number
