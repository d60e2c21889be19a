"""A mirror that followed the edits of objects equals one that reads the objects as they are now: an edit leaves nothing behind.

Users can edit the metadata of their objects: labels, annotations and owners, from which the mirror derives its indexes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.cluster.resources import watched
from queuectl.domain.jobs import PodRecord
from queuectl.domain.records import Deleted, Delta, Upserted
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kueue_names import workload_name
from queuectl.state.mirror import Mirror

READERS: Final = {resource.name: resource.read for resource in watched()}
OWN: Final = keys.PREFIX
IGNORED: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
GROUP, TOTAL = OWN + keys.POD_GROUP, OWN + keys.POD_GROUP_TOTAL
WORKLOADS: Final = [workload_name("Job", "batch", name, name) for name in ("job-0", "job-1")]
CLAIM: Final = {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu"}}]}}
DEVICE: Final = {"request": "g", "driver": "gpu.example.com", "pool": "n0", "device": "gpu-0"}


def metadata(kind: str, number: int, edit: dict[str, Any]) -> dict[str, Any]:
    owner = edit.get("owner")
    return {
        "namespace": "team",
        "name": f"{kind}-{number}",
        "uid": f"{kind}-{number}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {key: value for key, value in edit.get("labels", {}).items() if value},
        "annotations": {key: value for key, value in edit.get("annotations", {}).items() if value},
        "ownerReferences": [{"kind": owner[0], "uid": owner[1], "name": "o", "controller": True}]
        if owner
        else [],
    }


def pod(number: int, edit: dict[str, Any]) -> dict[str, Any]:
    gates = [{"name": keys.GATE}] if edit["gated"] else []
    node = {} if edit["gated"] else {"nodeName": "n0"}
    amounts = {"requests": {"cpu": "1"}}
    own = metadata("pod", number, edit)
    own["labels"][keys.RANK_LABELS[0]] = edit.get("rank", "0")
    if number < 2:  # admission lets no pod change its group
        own["labels"][GROUP] = "g"
    return {
        "metadata": own,
        "spec": {"containers": [{"resources": amounts}], "schedulingGates": gates, **node},
        "status": {"phase": edit["phase"]},
    }


def job(number: int, edit: dict[str, Any]) -> dict[str, Any]:
    """The second one is an array: admission lets no Job with pods become one, or end to be one."""
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    own = metadata("job", number, edit)
    if number == 1:
        own["annotations"][OWN + keys.ARRAY] = "true"
    return {
        "metadata": own,
        "spec": {
            "suspend": edit["suspended"],
            "podFailurePolicy": {"rules": [IGNORED]},
            "parallelism": 2,
            "completions": 2,
            "completionMode": "Indexed",
            "template": template,
        },
    }


def claim(number: int, edit: dict[str, Any]) -> dict[str, Any]:
    users = [{"resource": "pods", "name": u, "uid": u} for u in edit["users"]]
    allocation = {"devices": {"results": [DEVICE]}} if users else None
    return {
        "metadata": metadata("claim", number, edit),
        "spec": CLAIM,
        "status": {"allocation": allocation, "reservedFor": users},
    }


MADE: Final = {"pods": pod, "jobs": job, "resourceclaims": claim}

queues = st.sampled_from(["", "main"])
owners = st.sampled_from([None, ("Job", "job-0"), ("Job", "job-1"), ("Job", "x")])
POD_EDITS = st.fixed_dictionaries(
    {
        "labels": st.fixed_dictionaries(
            {
                OWN + keys.QUEUE_NAME: queues,
                keys.KIND_LABEL: st.sampled_from(["", "Job", "SparkApplication"]),
                keys.KUEUE_PODSET_LABEL: st.sampled_from(["", "main"]),
                keys.ATTEMPT_LABEL: st.sampled_from(["", "1"]),
            }
        ),
        "annotations": st.fixed_dictionaries(
            {
                keys.SUBMITTED_BY: st.sampled_from(["", "ann"]),
                TOTAL: st.just("2"),
                OWN + keys.CHECKPOINT: st.sampled_from(["", "2026-01-01T00:00:00Z"]),
                keys.KUEUE_WORKLOAD: st.sampled_from(["", *WORKLOADS]),
            }
        ),
        "owner": owners,
        "rank": st.sampled_from(["0", "1"]),
        "gated": st.booleans(),
        "phase": st.sampled_from(["Pending", "Running", "Failed"]),
    }
)
JOB_EDITS = st.fixed_dictionaries(
    {
        # Pods of a Kueue keep a job as their owner that is deleted, or leaves its queue.
        "labels": st.just({OWN + keys.QUEUE_NAME: "main"}),
        "owner": st.sampled_from([None, ("TrainJob", "train-0"), ("Job", "job-0")]),
        "suspended": st.booleans(),
    }
)
CLAIM_EDITS = st.fixed_dictionaries(
    {
        "owner": st.sampled_from([None, ("Pod", "pod-0"), ("Pod", "pod-1")]),
        "users": st.sampled_from([[], ["pod-0"], ["pod-1"]]),
    }
)
STEPS = st.one_of(
    st.tuples(st.just("pods"), st.integers(0, 2), POD_EDITS),
    st.tuples(st.just("jobs"), st.integers(0, 1), JOB_EDITS),
    st.tuples(st.just("resourceclaims"), st.integers(0, 1), CLAIM_EDITS),
    st.tuples(st.sampled_from(["pods", "resourceclaims"]), st.integers(0, 2), st.none()),
)


def uid_of(resource: str, number: int) -> str:
    return f"{MADE[resource].__name__}-{number}"


def read(resource: str, number: int, version: int, edit: dict[str, Any] | None) -> Delta:
    """The delta of the watch. An object that queuectl does not read is deleted to it."""
    record = None
    if edit is not None:
        document = MADE[resource](number, edit)
        document["metadata"]["resourceVersion"] = str(version)
        record = READERS[resource](msgspec.json.encode(document))
    if record is None:
        return Deleted(resource, uid_of(resource, number), version)
    return Upserted(record)


def names(mirror: Mirror) -> dict[str, str]:
    """The uid of a group is that of the first pod that it ever had."""
    return {uid: f"{j.kind}/{j.name}" for uid, j in mirror.jobs.items() if j.of_pods}


def described(mirror: Mirror) -> dict[str, Any]:
    """The data that the mirror derives from its objects, by the names of groups."""
    groups = names(mirror)

    def of(pods: Iterable[PodRecord]) -> list[tuple[object, ...]]:
        return sorted(
            (p.uid, groups.get(p.owner, p.owner), p.owner_kind, p.gated, p.phase, p.checkpoint_at)
            for p in pods
        )

    claims = {
        holder: sorted(one.uid for one in mirror.devices.claims_of(holder))
        for holder in mirror.devices.holders
    }
    return {
        "jobs": sorted(groups.get(uid, uid) for uid in mirror.jobs),
        "pods": of(mirror.pods.values()),
        "pods of": {groups.get(uid, uid): of(mirror.pods_of(j)) for uid, j in mirror.jobs.items()},
        "requests": {
            groups.get(uid, uid): (
                job.suspended,
                job.podsets,
                job.forbidden,
                job.awaits,
                job.attempt,
                job.error,
            )
            for uid, job in mirror.jobs.items()
        },
        "saved": {
            groups.get(uid, uid): mirror.checkpoint_of(j, j.attempt)
            for uid, j in mirror.jobs.items()
        },
        "claims": claims,
        "named claims": sorted(mirror.devices.named_claims),
    }


@settings(max_examples=500)
@given(st.lists(STEPS, max_size=12))
def test_a_mirror_that_followed_edits_equals_one_that_reads_the_objects_now(
    steps: list[tuple[str, int, dict[str, Any] | None]],
) -> None:
    followed, now = Mirror.of(KINDS), dict[tuple[str, int], Delta]()
    for version, (resource, number, edit) in enumerate(steps, start=1):
        delta = now[resource, number] = read(resource, number, version, edit)
        followed.apply([delta])
    assert followed.generation == 0, "no edit makes it build everything again"
    fresh = Mirror.of(KINDS)
    fresh.apply([delta for delta in now.values() if isinstance(delta, Upserted)])
    assert described(followed) == described(fresh)


def test_a_deleted_pod_is_forgotten_under_each_workload_that_it_named() -> None:
    """The job of the first one appears afterward."""
    mirror = Mirror.of(KINDS)
    plain: dict[str, Any] = {"gated": False, "phase": "Running"}
    for version, name in enumerate(WORKLOADS, start=1):
        of_kueue = {
            "labels": {keys.KUEUE_PODSET_LABEL: "main"},
            "annotations": {keys.KUEUE_WORKLOAD: name},
        }
        mirror.apply([read("pods", 2, version, {**plain, **of_kueue})])
    mirror.apply([read("pods", 2, 3, None)])
    queued = {"labels": {OWN + keys.QUEUE_NAME: "main"}, "suspended": True}
    mirror.apply([read("jobs", 0, 4, queued)])
    assert (mirror.generation, set(mirror.jobs)) == (0, {"job-0"})
