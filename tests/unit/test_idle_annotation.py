"""``queuectl.dev/idle-since``: idleness as stated in files for ``queuectl plan``, where no samples exist."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.objects.documents import as_document
from queuectl.objects.kinds import KINDS
from queuectl.objects.times import parse_time
from tests.unit.test_objects_snapshots import job, load, on_hosts, pod, workload

SINCE = "2026-08-22T08:00:00Z"
NOW = parse_time("2026-08-22T09:00:00Z")
IDLE = {"queuectl.dev/idle-since": SINCE}


@pytest.mark.parametrize(
    ("annotations", "since"),
    [
        pytest.param(IDLE, SINCE, id="since then"),
        pytest.param({}, None, id="unknown is not idle"),
        pytest.param({"queuectl.dev/idle-since": "an hour ago"}, None, id="nor is what cannot be read"),
        pytest.param({"queuectl.dev/idle-since": "2026-08-22T09:00:01Z"}, None, id="nor what is to come"),
        pytest.param({"queuectl.dev/gpu-utilization": "0"}, None, id="nor no use of its GPUs"),
        pytest.param(IDLE | {"queuectl.dev/idle-reclaim": "false"}, None, id="nor one that is exempt"),
        pytest.param({"kueue.x-k8s.io/idle-since": SINCE}, None, id="Kueue has no such key"),
    ],
)  # fmt: skip
def test_since_when_a_gang_is_idle(annotations: dict[str, str], since: str | None) -> None:
    expected = None if since is None else parse_time(since)
    body = workload(metadata={"annotations": annotations}, status=on_hosts(r1_a=1, r1_b=1))
    (gang,) = load(body, now=NOW).snapshot.admitted
    assert gang.idle_since == expected
    running = _annotated(job(uid="job-1", suspend=False), annotations)
    pods = [pod(name, "r1-a", owner="job-1") for name in "ab"]
    (gang,) = load(running, *pods, now=NOW).snapshot.admitted
    assert gang.idle_since == expected


@pytest.mark.parametrize(
    ("of_job", "of_workload", "since"),
    [
        ({}, IDLE, SINCE),
        (IDLE, {}, SINCE),
        (IDLE, {"queuectl.dev/idle-since": "2026-08-22T07:00:00Z"}, SINCE),
        ({"queuectl.dev/idle-reclaim": "false"}, IDLE, None),
    ],
)
def test_of_a_job_with_a_workload_the_jobs_own_word_counts_first(
    of_job: dict[str, str], of_workload: dict[str, str], since: str | None
) -> None:
    owner: dict[str, Any] = {"ownerReferences": [{"kind": "Job", "name": "j", "uid": "job-1"}]}
    metadata = {**owner, "annotations": of_workload}
    both = (
        _annotated(job(uid="job-1", suspend=False), of_job),
        workload("job-j-1a2b3", metadata=metadata, status=on_hosts(r1_a=2)),
    )
    (gang,) = load(*both, now=NOW).snapshot.admitted
    assert gang.idle_since == (None if since is None else parse_time(since))


def test_in_a_cluster_nothing_is_read_of_it() -> None:
    """The record of a job is the same with and without it: in a cluster only samples count."""
    kind = KINDS["Job"]
    bodies = [job(uid="job-1", suspend=False), _annotated(job(uid="job-1", suspend=False), IDLE)]
    plain, said = (kind.read(as_document(b).convert(kind.wire), strict=False) for b in bodies)
    assert plain == said


def _annotated(body: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    known = body["metadata"].get("annotations", {})
    return body | {"metadata": body["metadata"] | {"annotations": {**known, **annotations}}}
