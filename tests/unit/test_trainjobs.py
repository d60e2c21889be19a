"""TrainJobs: the request from the JobSet or from the runtime, and the entry of queuectl in the list of changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import ArrayStatus, JobRecord
from queuectl.domain.reasons import Code
from queuectl.domain.records import Deleted, ListCompleted, Upserted
from queuectl.objects import keys
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import DocumentError
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.described import encoded
from queuectl.objects.kinds.parents import Parents
from queuectl.objects.kinds.trainjob import composed, jobset_of
from queuectl.offline.inputs import SnapshotInput, read_snapshot
from queuectl.state.mirror import Mirror
from tests.doubles.apiserver import operated
from tests.support.jobs import job_of
from tests.support.trainjobs import replicated, training_runtime, trainjob

PODS = PodSetManifest(1, gpus=8)
RUNTIME = training_runtime("torch", "team-a", replicated("node", PODS, step="trainer"))


def train(name: str = "train", **spec: Any) -> Document:
    return trainjob(name, "team-a", "torch", **spec)


def stored(document: Document, uid: str, version: int = 5) -> Document:
    metadata = document["metadata"] | {"uid": uid, "resourceVersion": str(version)}
    return document | {"metadata": metadata}


def read(document: Document) -> JobRecord:
    kind = KINDS[document["kind"]]
    return kind.read(msgspec.convert(document, kind.wire))


def child_of(job: Document, version: int = 6) -> JobRecord:
    return read(stored(jobset_of(job, RUNTIME), f"{job['metadata']['name']}-jobset", version))


# ---- in the mirror


class TestMirror:
    """The record of a TrainJob has the request of its JobSet."""

    job = stored(train(nodes=3, suspend=True), "t1")

    @pytest.fixture
    def mirror(self) -> Mirror:
        found = Mirror.of(KINDS)
        found.apply([Upserted(read(self.job))])
        return found

    def test_it_waits_until_its_jobset_exists(self, mirror: Mirror) -> None:
        waits = mirror.jobs["t1"]
        assert waits.awaits == (
            "its JobSet does not exist: the Kubeflow trainer creates it from TrainingRuntime torch"
        )
        mirror.edited.clear()
        mirror.apply([Upserted(child_of(self.job))])
        record = mirror.jobs["t1"]
        assert (record.awaits, [(p.name, p.count) for p in record.podsets]) == ("", [("node", 3)])
        assert (record.version, mirror.edited) == (5, {"t1"})
        assert set(mirror.jobs) == {"t1"}, "the JobSet is not a workload"

    def test_the_order_of_the_events_does_not_matter(self) -> None:
        mirror = Mirror.of(KINDS)
        mirror.apply([Upserted(child_of(self.job)), Upserted(read(self.job))])
        assert mirror.jobs["t1"].podsets[0].count == 3

    def test_an_older_jobset_does_not_replace_a_newer_one(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(child_of(self.job, version=9))])
        fewer = stored(train(nodes=1, suspend=True), "t1")
        mirror.apply([Upserted(child_of(fewer, version=8))])
        assert mirror.jobs["t1"].podsets[0].count == 3

    def test_it_waits_again_when_its_jobset_is_deleted(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(child_of(self.job))])
        mirror.apply([Deleted("jobsets", "train-jobset", 9)])
        assert mirror.jobs["t1"].awaits

    @pytest.mark.parametrize("suspended", [True, False])
    def test_it_has_its_jobset_when_it_leaves_its_queue_and_is_in_a_queue_again(
        self, mirror: Mirror, suspended: bool
    ) -> None:
        mirror.apply([Upserted(child_of(self.job)), Deleted("trainjobs", "t1", 7)])
        mirror.apply([Upserted(replace(read(self.job), suspended=suspended, version=8))])
        assert mirror.jobs["t1"].awaits == ""
        assert mirror.jobs["t1"].podsets[0].count == 3

    def test_a_jobset_that_was_deleted_while_it_ran_is_forgotten_with_it(
        self, mirror: Mirror
    ) -> None:
        runs = replace(read(self.job), suspended=False, version=7)
        mirror.apply([Upserted(child_of(self.job)), Upserted(runs)])
        mirror.apply([Deleted("jobsets", "train-jobset", 9), Deleted("trainjobs", "t1", 10)])
        mirror.apply([Upserted(read(stored(train(nodes=3, suspend=True), "t1", version=11)))])
        assert mirror.jobs["t1"].awaits

    def test_jobsets_that_its_controller_creates_again_while_it_runs_do_not_accumulate(
        self, mirror: Mirror
    ) -> None:
        runs = replace(read(self.job), suspended=False, version=7)
        mirror.apply([Upserted(child_of(self.job)), Upserted(runs)])
        for number in range(3):
            [uid] = mirror._parents.children("JobSet")
            again = replace(child_of(self.job, version=20 + number), uid=f"again-{number}")
            mirror.apply([Deleted("jobsets", uid, 10 + number), Upserted(again)])
        assert mirror._parents.children("JobSet") == ["again-2"]
        assert mirror._parents._deleted == set()

    def test_a_jobset_that_a_new_list_lacks_is_deleted(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(child_of(self.job))])
        mirror.apply([ListCompleted("jobsets", frozenset(), 9)])
        assert mirror.jobs["t1"].awaits

    def test_a_jobset_that_was_created_again_stays_when_a_new_list_lacks_the_old_one(
        self, mirror: Mirror
    ) -> None:
        again = replace(child_of(self.job, version=12), uid="second")
        mirror.apply([Upserted(child_of(self.job)), Upserted(again)])
        for version in (13, 14):
            mirror.apply([ListCompleted("jobsets", frozenset({"second"}), version)])
            assert mirror.jobs["t1"].awaits == ""

    @pytest.mark.parametrize("suspended", [True, False])
    @pytest.mark.parametrize("queue", [None, "main"])
    def test_a_jobset_of_another_namespace_does_not_count(
        self, mirror: Mirror, suspended: bool, queue: str | None
    ) -> None:
        real = child_of(self.job)
        mirror.apply(
            [Upserted(real), Upserted(replace(read(self.job), suspended=suspended, version=7))]
        )
        before = mirror.jobs["t1"]
        other = stored(train(nodes=500, suspend=True), "t1")
        forged = replace(child_of(other, version=8), namespace="team-b", uid="forged", queue=queue)
        mirror.apply([Upserted(forged)])
        assert mirror.jobs["t1"] == before
        mirror.apply([Deleted("jobsets", "forged", 9)])
        assert mirror.jobs == {"t1": before}

    @pytest.mark.parametrize("kind", ["Job", "TFJob", "RayCluster"])
    def test_a_job_that_names_a_trainjob_as_its_controller_stays_in_its_own_queue(
        self, mirror: Mirror, kind: str
    ) -> None:
        job = stored(job_of(kind, "own", pods=2, gpus=1), "u1")
        owner = {"kind": "TrainJob", "name": "train", "uid": "t1", "controller": True}
        job["metadata"] |= {"namespace": "team-a", "ownerReferences": [owner]}
        mirror.apply([Upserted(read(job))])
        assert mirror.jobs["u1"].queue is not None

    def test_a_running_trainjob_keeps_its_request_without_its_jobset(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(child_of(self.job))])
        runs = replace(read(self.job), suspended=False, version=7)
        mirror.apply([Upserted(runs), Deleted("jobsets", "train-jobset", 9)])
        assert mirror.jobs["t1"].podsets[0].count == 3

    def test_a_deleted_trainjob_leaves_nothing(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(child_of(self.job)), Deleted("trainjobs", "t1", 9)])
        assert mirror.jobs == {}
        mirror.apply([Upserted(child_of(self.job, version=10))])
        assert mirror.jobs == {}


class TestJobsOfJobSets:
    """A JobSet, and the TrainJob above it, request no pods that have ended in Jobs that have not."""

    trainjob = stored(train(nodes=3, suspend=True), "t1")
    jobset = stored(jobset_of(trainjob, RUNTIME), "js1")
    alone = jobset | {
        "metadata": {
            "name": "alone",
            "namespace": "team-a",
            "uid": "js1",
            "resourceVersion": "5",
            "labels": {keys.PREFIX + keys.QUEUE_NAME: "main"},
        }
    }

    def job(self, version: int = 7, **status: Any) -> JobRecord:
        [entry] = self.jobset["spec"]["replicatedJobs"]
        owner = {"kind": "JobSet", "name": "x", "uid": "js1", "controller": True}
        metadata = {
            "name": "x-node-0",
            "namespace": "team-a",
            "uid": "j1",
            "resourceVersion": str(version),
            "labels": {"jobset.sigs.k8s.io/replicatedjob-name": "node"},
            "ownerReferences": [owner],
        }
        spec = entry["template"]["spec"] | {"suspend": True}
        return read({"kind": "Job", "metadata": metadata, "spec": spec, "status": status})

    @pytest.fixture(params=["JobSet", "TrainJob"])
    def mirror(self, request: pytest.FixtureRequest) -> Mirror:
        of_trainjob = [self.trainjob, self.jobset]
        given = of_trainjob if request.param == "TrainJob" else [self.alone]
        found = Mirror.of(KINDS)
        found.apply([Upserted(self.job(succeeded=1)), *(Upserted(read(one)) for one in given)])
        return found

    def count(self, mirror: Mirror) -> int:
        [job] = mirror.jobs.values()
        return sum(podset.count for podset in job.podsets)

    def test_it_requests_the_pods_that_are_left(self, mirror: Mirror) -> None:
        assert self.count(mirror) == 2
        mirror.apply([Upserted(self.job(8, succeeded=2))])
        assert self.count(mirror) == 1
        mirror.apply([Upserted(self.job(7, succeeded=1))])
        assert self.count(mirror) == 1

    def test_a_job_of_another_namespace_does_not_count(self, mirror: Mirror) -> None:
        mirror.apply([Upserted(replace(self.job(succeeded=2), uid="forged", namespace="team-b"))])
        assert self.count(mirror) == 2

    def test_jobs_that_replace_their_ended_pods_free_none(self) -> None:
        """A Job with more completions than pods at a time keeps as many pods while some succeed."""
        parents = Parents()
        assert parents.put(read(self.alone)).podsets[0].count == 3
        for uid in ("j1", "j2"):
            job = self.job(succeeded=1)
            job = replace(job, uid=uid, expected=((job.podsets[0].name, job.podsets[0].count),))
            changed = parents.put_child(job)
            assert changed is not None
            assert changed.podsets[0].count == 3
        for uid in ("j1", "j2"):
            left = parents.remove_child(uid)
            assert left is not None
            assert left.podsets[0].count == 3

    def test_the_pods_of_a_complete_job_count_as_ended_until_the_status_of_the_jobset_does(
        self,
    ) -> None:
        """The watch shows the Job first. The gang would expect more pods than it has slots, and be evicted."""
        mirror = Mirror.of(KINDS)
        jobset = replace(read(self.alone), suspended=False)
        mirror.apply([Upserted(jobset), Upserted(self.job(succeeded=2))])
        mirror.apply([Deleted("jobs", "j1", 9)])
        [job] = mirror.jobs.values()
        assert job.pods_at_once == {podset.name: 1 for podset in job.podsets}
        mirror.apply([Upserted(replace(jobset, version=10))])
        [job] = mirror.jobs.values()
        assert job.pods_at_once == {podset.name: 3 for podset in job.podsets}

    def test_the_status_of_a_jobset_that_is_newer_than_the_end_of_its_job_counts_alone(
        self,
    ) -> None:
        mirror = Mirror.of(KINDS)
        jobset = replace(read(self.alone), suspended=False, version=10)
        mirror.apply([Upserted(self.job(succeeded=2)), Upserted(jobset)])
        mirror.apply([Deleted("jobs", "j1", 9)])
        [job] = mirror.jobs.values()
        assert job.pods_at_once == {podset.name: 3 for podset in job.podsets}

    def test_the_jobs_of_a_jobset_that_is_no_longer_elastic_count(self) -> None:
        mirror, alone = Mirror.of(KINDS), read(self.alone)
        elastic = replace(alone, array=ArrayStatus(completions=3, at_once=3, base=3))
        mirror.apply([Upserted(elastic)])
        mirror.apply([Upserted(replace(alone, version=elastic.version + 5))])
        assert mirror.appeared(alone.uid) == elastic.version
        mirror.apply([Upserted(self.job(succeeded=2))])
        assert self.count(mirror) == 1

    @pytest.mark.parametrize(
        "gone", [Deleted("jobs", "j1", 9), ListCompleted("jobs", frozenset(), 9)]
    )
    def test_a_job_that_no_longer_exists_has_no_ended_pods(
        self, mirror: Mirror, gone: Deleted | ListCompleted
    ) -> None:
        mirror.apply([gone])
        assert self.count(mirror) == 3

    def test_a_resumed_one_keeps_its_podsets_and_expects_the_pods_that_are_left(self) -> None:
        mirror = Mirror.of(KINDS)
        mirror.apply([Upserted(replace(read(self.alone), suspended=False))])
        mirror.apply([Upserted(self.job(succeeded=2))])
        [job] = mirror.jobs.values()
        assert [(podset.count, job.pods_at_once[podset.name]) for podset in job.podsets] == [(3, 1)]

    @pytest.mark.parametrize(
        "status",
        [
            {},
            {"succeeded": 3, "conditions": [{"type": "Complete", "status": "True"}]},
            {"failed": 2},
        ],
    )
    def test_other_jobs_are_not_kept(self, status: Any) -> None:
        assert self.job(**status).parent == ""


def test_a_jobset_with_its_own_label_is_not_a_workload_if_it_is_for_a_trainjob() -> None:
    document = stored(jobset_of(stored(train(), "t1"), RUNTIME), "j1")
    document["metadata"]["labels"] = {keys.QUEUE_LABEL: "main"}
    pods = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pods["metadata"]["labels"] = {keys.KIND_LABEL: "TrainJob"}
    record = read(document)
    assert (record.queue, record.parent) == (None, "t1")


# ---- the entry of queuectl


def patched(document: Document, attempt: int = 2) -> Document:
    kind = KINDS["TrainJob"]
    record = replace(read(document), podsets=child_of(document).podsets, awaits="")
    body, _ = encoded(kind.start_patch(record, attempt, "Starting"))
    return operated(document, body) if isinstance(body, list) else document | body


def test_a_start_replaces_the_entry_of_queuectl_and_keeps_those_of_others() -> None:
    user = {"manager": "example.com/user", "trainingRuntimeSpec": {"template": {}}}
    own = {"manager": keys.PATCHES_OWNER, "trainingRuntimeSpec": {"template": {}}}
    document = stored(train(nodes=2, suspend=True, runtimePatches=[user, own]), "t1")
    after = patched(document)["spec"]
    assert after["suspend"] is False
    kept, written = after["runtimePatches"]
    assert kept == user
    changes = written["trainingRuntimeSpec"]["template"]
    assert changes["metadata"]["labels"] == {
        keys.KIND_LABEL: "TrainJob",
        keys.ATTEMPT_LABEL: "2",
    }
    [node] = changes["spec"]["replicatedJobs"]
    template = node["template"]["spec"]["template"]
    assert template["spec"] == {"schedulingGates": [{"name": keys.GATE}]}
    assert template["metadata"]["labels"] == {
        keys.ATTEMPT_LABEL: "2",
        keys.WORKLOAD_LABEL: "t1",
        keys.PODSET_LABEL: "node",
        keys.KIND_LABEL: "TrainJob",
    }


def test_a_trainjob_from_before_the_policies_gets_an_entry_alongside_those_of_others() -> None:
    user = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {}}}
    document = stored(train(nodes=2, suspend=True, runtimePatches=[user]), "t1")
    owners = [one["manager"] for one in patched(document)["spec"]["runtimePatches"]]
    assert owners == ["kueue.x-k8s.io/manager", keys.PATCHES_OWNER]


# ---- in files

CLUSTER = """
{apiVersion: v1, kind: Node, metadata: {name: a}, status: {allocatable: {cpu: "64", nvidia.com/gpu: "8", pods: "9"}}}
---
{apiVersion: v1, kind: Node, metadata: {name: b}, status: {allocatable: {cpu: "64", nvidia.com/gpu: "8", pods: "9"}}}
---
"""


def load(*bodies: Document) -> SnapshotInput:
    text = CLUSTER + "---\n".join(yaml.safe_dump(body) for body in bodies)
    return read_snapshot(read_documents(text, "f.yaml"))


def podsets(found: SnapshotInput) -> dict[str, int]:
    [pending] = found.snapshot.pending
    return {podset.name: podset.count for podset in pending.workload.podsets}


def test_a_trainjob_of_a_file_asks_for_the_pods_of_its_runtime() -> None:
    found = load(train(nodes=2), RUNTIME)
    assert podsets(found) == {"node": 2}
    assert found.account.ignored == ()
    [pending] = found.snapshot.pending
    assert (pending.workload.kind, pending.workload.podsets[0].shape.requests["nvidia.com/gpu"]) == ("TrainJob", 8)  # fmt: skip
    assert pending.blocked is None or pending.blocked.code is not Code.WAITING_FOR_PODS


def test_the_kind_of_a_runtime_is_that_of_the_whole_cluster_if_none_is_given() -> None:
    job = train()
    del job["spec"]["runtimeRef"]["kind"]
    with pytest.raises(DocumentError, match="ClusterTrainingRuntime torch is not in the input"):
        load(job, RUNTIME)
    wide = training_runtime("torch", None, replicated("node", PODS, step="trainer"))
    assert podsets(load(job, wide)) == {"node": 1}


def test_the_jobset_of_a_file_counts_instead_of_a_runtime() -> None:
    job = stored(train(nodes=2, suspend=True), "t1")
    assert podsets(load(job, stored(jobset_of(job, RUNTIME), "j1"))) == {"node": 2}


def test_an_initializer_is_a_podset_of_the_gang() -> None:
    first = replicated("dataset-initializer", PodSetManifest(1), step="dataset-initializer")
    runtime = training_runtime("torch", "team-a", first, replicated("node", PODS, step="trainer"))
    assert podsets(load(train(nodes=2), runtime)) == {"dataset-initializer": 1, "node": 2}


FAULTS: dict[str, tuple[list[Document], str]] = {
    "no runtime": (
        [train()],
        "spec.runtimeRef.name: TrainingRuntime torch of namespace team-a is not in the input: it has the pods of the TrainJob",
    ),
    "a runtime of another namespace": (
        [train(), RUNTIME | {"metadata": {"name": "torch", "namespace": "team-b"}}],
        "spec.runtimeRef.name: TrainingRuntime torch of namespace team-a is not in the input",
    ),
    "another kind of runtime": (
        [train(runtimeRef={"name": "x", "kind": "MyRuntime"})],
        "spec.runtimeRef.kind: 'MyRuntime' is neither ClusterTrainingRuntime nor TrainingRuntime",
    ),
    "a change of a replicated job that does not exist": (
        [
            train(
                runtimePatches=[
                    {
                        "manager": "example.com/user",
                        "trainingRuntimeSpec": {
                            "template": {"spec": {"replicatedJobs": [{"name": "other"}]}}
                        },
                    }
                ]
            ),
            RUNTIME,
        ],
        "spec.runtimePatches: TrainingRuntime torch has no replicated job 'other'",
    ),
}


@pytest.mark.parametrize(("bodies", "says"), FAULTS.values(), ids=FAULTS)
def test_a_file_that_lacks_the_pods_of_a_trainjob_is_refused(
    bodies: list[Document], says: str
) -> None:
    with pytest.raises(DocumentError) as refused:
        load(*bodies)
    assert says in str(refused.value)


def test_a_trainjob_of_a_runtime_without_replicated_jobs_is_not_planned() -> None:
    [pending] = load(train(), training_runtime("torch", "team-a")).snapshot.pending
    assert pending.blocked is not None
    assert pending.blocked.message == "spec.replicatedJobs: is empty"


def test_a_trainjob_of_an_elastic_jobset_is_not_supported() -> None:
    job = stored(train(nodes=3, suspend=True), "t1")
    elastic = replace(child_of(job), array=ArrayStatus(completions=3, at_once=3, base=3))
    record = composed(read(job), elastic)
    assert record.unsupported
    assert record.error == "elastic-job of its runtime: a TrainJob cannot be elastic"
