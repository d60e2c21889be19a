"""TrainJobs at the hand-over: the containers that Kueue compares, and its entry of ``runtimePatches``."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.handover.gangs import Queued, Stopped, fates
from queuectl.handover.trainjobs import TRAINJOB, jobset_for_kueue
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.trainjob import jobset_of
from tests.support.kueue import QUEUE_LABEL
from tests.support.trainjobs import replicated, training_runtime, trainjob
from tests.unit.test_handover import SPACE, cluster
from tests.unit.test_handover_kinds import started_by_kueue

Document = dict[str, Any]
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def runtime(**container: Any) -> Document:
    """A runtime of PyTorch. ``container``: fields of the container of its nodes."""
    node = replicated("node", PodSetManifest(1), step="trainer")
    side = {"name": "side", "image": "side:1", "env": [{"name": n, "value": "1"} for n in "abc"]}
    [main] = node["template"]["spec"]["template"]["spec"]["containers"]
    main |= container
    node["template"]["spec"]["template"]["spec"]["containers"].append(side)
    data = replicated("dataset-initializer", PodSetManifest(1), step="dataset-initializer")
    return training_runtime("torch", SPACE, data, node)


def patch(manager: str, container: Document) -> Document:
    pod = {"template": {"spec": {"template": {"spec": {"containers": [container]}}}}}
    jobs = {"spec": {"replicatedJobs": [{"name": "node", **pod}]}}
    return {"manager": manager, "trainingRuntimeSpec": {"template": jobs}}


def containers(job: Document, given: Document) -> list[Document]:
    """Of the nodes, as Kueue reads them."""
    before = deepcopy((job, given))
    jobset = jobset_for_kueue(job, given)
    assert (job, given) == before, "the documents are not changed"
    read: list[Document] = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"][
        "spec"
    ]["containers"]
    return read


def test_the_containers_are_those_of_the_runtime_and_of_the_trainjob() -> None:
    """Without the variables and the port of the trainer's plugin, which Kueue omits."""
    given = runtime(
        env=[{"name": "B", "value": "old"}, {"name": "A", "value": "1"}],
        resources={"requests": {"cpu": "4", "memory": "1Gi"}},
        args=["--kept"],
    )
    job = trainjob("train", SPACE, "torch", nodes=2)
    field_ref = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
    job["spec"]["trainer"] |= {
        "image": "mine:2",
        "command": ["run"],
        "env": [
            {"name": "C"},
            {"name": "B", "value": "new"},
            {"name": "D", "valueFrom": field_ref},
            {"name": "E", "valueFrom": SECRET},
        ],
        "resourcesPerNode": {"requests": {"cpu": "8"}},
    }
    main, side = containers(job, given)
    assert (main["image"], main["command"], main["args"]) == ("mine:2", ["run"], ["--kept"])
    assert main["env"] == [
        {"name": "B", "value": "new"},
        {"name": "A", "value": "1"},
        {"name": "C", "value": ""},
        {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "E", "valueFrom": SECRET},
    ]
    # The trainer in Kueue replaces the resources as a whole, and a newer one merges them.
    assert main["resources"] == {"requests": {"cpu": "8"}}
    assert "ports" not in main
    assert side["image"] == "side:1"


def test_patches_of_users_merge_as_kubernetes_merges_them() -> None:
    change = {
        "name": "side",
        "env": [{"name": "x", "value": "2"}, {"name": "b", "value": "2"}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "securityContext": {"runAsUser": 7},
    }
    job = trainjob("train", SPACE, "torch", runtimePatches=[patch("example.com/me", change)])
    side = containers(job, runtime())[1]
    assert [(one["name"], one["value"]) for one in side["env"]] == [
        ("x", "2"),
        ("a", "1"),
        ("b", "2"),
        ("c", "1"),
    ]
    assert side["volumeMounts"] == change["volumeMounts"]
    assert side["securityContext"] == {"runAsUser": 7}


def test_an_initializer_gets_its_address_and_its_secret() -> None:
    dataset = {"storageUri": "hf://set", "env": [{"name": "E", "value": "1"}], "secretRef": {}}
    dataset["secretRef"] = {"name": "token"}
    job = trainjob("train", SPACE, "torch", initializer={"dataset": dataset})
    jobs = jobset_for_kueue(job, runtime())["spec"]["replicatedJobs"]
    [container] = jobs[0]["template"]["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {"name": "STORAGE_URI", "value": "hf://set"},
        {"name": "E", "value": "1"},
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "token"}}]


def test_trainjobs_whose_containers_kueue_reads_in_another_way_are_named() -> None:
    job = trainjob("train", SPACE, "torch", nodes=1)
    tuned = deepcopy(job)
    tuned["spec"]["trainer"]["command"] = ["tune", "run"]
    flux = runtime()
    flux["spec"]["mlPolicy"] = {"flux": {}}
    cases = (
        (job, None, "its runtime does not exist"),
        (tuned, runtime(), "Flux or TorchTune"),
        (job, flux, "Flux or TorchTune"),
    )
    for document, given, reason in cases:
        with pytest.raises(RequestError, match=reason):
            jobset_for_kueue(document, given)


def test_a_runtime_that_has_changed_its_podsets_stops_the_trainjob() -> None:
    """Kueue reads the runtime as it is now."""
    given = started_by_kueue(TRAINJOB)
    [changed] = given.runtimes.values()
    jobs = changed["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[0]["template"]["spec"] |= {"parallelism": 3, "completions": 3}
    [fate] = fates(given)
    assert isinstance(fate, Stopped)
    assert "3 pods in its runtime, and 1 in its JobSet" in fate.reason


def test_the_suspended_children_lose_the_gate_before_their_trainjob_is_written() -> None:
    """The trainer leaves the gate in a JobSet, and the controller of JobSets leaves it in their Jobs."""
    job = trainjob("train", SPACE, "torch", queue="team", suspend=True)
    job["metadata"]["uid"] = "u"
    jobset = jobset_of(job, runtime())
    jobset["metadata"] |= {"uid": "s", "resourceVersion": "5"}
    pods = [one["template"]["spec"]["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]]
    for one in pods:
        one["schedulingGates"] = [{"name": keys.GATE}]
    children = []
    for name, controller, gates in (
        ("train-node-0", "s", [{"name": keys.GATE}]),
        ("train-data-0", "s", []),  # it has nothing to lose
        ("other-node-0", "another", [{"name": keys.GATE}]),
    ):
        template = {"spec": {"containers": [], "schedulingGates": gates}}
        owner = {"kind": "JobSet", "name": "train", "uid": controller, "controller": True}
        meta = {"name": name, "namespace": SPACE, "uid": name, "ownerReferences": [owner]}
        children.append({"metadata": meta, "spec": {"suspend": True, "template": template}})
    jobs = {TRAINJOB: [job], "JobSet": [jobset], "Job": children}
    [fate] = fates(cluster(jobs=jobs, pods=[]))
    assert isinstance(fate, Queued)
    assert [one.owner.ref for one in fate.children] == [
        f"Job {SPACE}/train-node-0",
        f"JobSet {SPACE}/train",
    ]
    assert "schedulingGates" not in fate.children[0].document["spec"]["template"]["spec"]
    written = fate.children[1].document
    assert written["metadata"]["resourceVersion"] == "5"
    assert keys.GATE not in str(written)
    assert written["spec"]["suspend"] is True


def test_a_suspended_trainjob_gets_the_entry_of_kueue_and_loses_that_of_queuectl() -> None:
    """Kueue's webhook adds its entry only at the creation, and Kueue starts no TrainJob without it."""
    gate = {"template": {"spec": {"schedulingGates": [{"name": keys.GATE}]}}}
    own = {"manager": keys.PATCHES_OWNER, "trainingRuntimeSpec": gate}
    other = patch("example.com/me", {"name": "side"})
    earlier = patch("kueue.x-k8s.io/manager", {"name": "side"})
    for entries in ([own, other], [earlier, other, own], [other]):
        job = trainjob("train", SPACE, "torch", queue="team", runtimePatches=entries, suspend=True)
        job["metadata"]["uid"] = "u"
        [fate] = fates(cluster(jobs={TRAINJOB: [job]}, pods=[]))
        assert isinstance(fate, Queued)
        entry = {"template": {"metadata": {"labels": {QUEUE_LABEL: "team"}}, "spec": {}}}
        assert fate.document["spec"]["runtimePatches"] == [
            other,
            {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": entry},
        ]
        assert job["spec"]["runtimePatches"] == entries
