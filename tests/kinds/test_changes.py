"""A user, and the account of queuectl, change of each kind only the fields that its queue sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster.client import Client
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.description import nested
from queuectl.objects.kinds.leaderworkerset import labels_of
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry
from tests.kinds.pod_entries import POD_ENTRIES
from tests.support.people import role
from tests.system.actions import until_reason
from tests.system.forger import account_of_queuectl, refused, tenant_of
from tests.system.forger import pod as bare_pod
from tests.system.installation import Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

_GROUPS: Final = sorted({"leaderworkerset.x-k8s.io", *(kind.group for kind in KINDS.values())})
_RIGHTS: Final = [{"apiGroups": _GROUPS, "resources": ["*"], "verbs": ["*"]}]
_OWN_LABELS: Final = (
    keys.ATTEMPT_LABEL,
    keys.PODSET_LABEL,
    keys.KIND_LABEL,
    keys.WORKLOAD_LABEL,
    keys.RANKS_LABEL,
    keys.FIRST_RANK_LABEL,
)
_OTHER_QUEUE: Final = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
_OTHER_USER: Final = {"metadata": {"annotations": {keys.SUBMITTED_BY: "root"}}}
_MUCH: Final = PodSetManifest(9, gpus=8)
"""More than the quota of each test."""


_COUNTS: Final = ("replicas", "parallelism", "completions")
_OTHER_FIELDS: Final[dict[str, tuple[Document, ...]]] = {
    "JobSet": ({"replicatedJobs": []}, {"ttlSecondsAfterFinished": 1}),
    "RayCluster": ({"workerGroupSpecs": []}, {"rayVersion": "1"}),
    "MPIJob": ({"slotsPerWorker": 2}, {"runLauncherAsWorker": True}, {"runPolicy": {"cleanPodPolicy": "All"}}),
}  # fmt: skip
"""Of the spec of a kind. queuectl changes none of them."""


def _by_kind(entries: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", entries, ids=lambda one: one.kind)


OF_KINDS: Final = _by_kind(
    [
        one
        for one in ENTRIES
        if one.kind in {*KINDS} - {"TrainJob", "AppWrapper", "SparkApplication"}
    ]
)
"""tests/kinds/test_trainjobs.py has those of TrainJobs, whose templates are in their runtime, tests/kinds/test_appwrappers.py those of
AppWrappers, whose templates are in their components, and tests/kinds/test_sparkapplications.py those of SparkApplications, which have the labels
of their pods alongside the templates."""
OF_PODS: Final = _by_kind([one for one in POD_ENTRIES if one.kind != "array"])
OF_CONTROLLERS: Final = _by_kind(
    [one for one in POD_ENTRIES if one.kind in ("Deployment", "StatefulSet", "LeaderWorkerSet")]
)


@contextmanager
def _tenant(workspace: Workspace) -> Iterator[Client]:
    """A user who may edit all kinds in the namespace."""
    with tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        yield client


def _created(workspace: Workspace, entry: Entry, client: Client) -> Document:
    """An object of this user, which waits."""
    [document] = entry.documents("waits", workspace.namespace, _MUCH, None)
    path = client.path_of(document)
    made: Document = client.create(path.rpartition("/")[0], document)
    workspace.made.append(path)
    return made


def _in_templates(document: Document, change: Callable[[Any], None]) -> Document:
    """The patch that changes each pod template of an object."""
    changed = deepcopy(document)
    for template in KINDS[document["kind"]].templates(changed):
        change(template)
    return {"spec": changed["spec"]}


def _larger(document: Document) -> Document:
    """The patch that adds pods to each podset of an object."""

    def more(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v + 1 if k in _COUNTS else more(v) for k, v in value.items()}
        return [more(one) for one in value] if isinstance(value, list) else value

    return {"spec": more(document["spec"])}


def _label(name: str, value: str = "7") -> Callable[[Any], None]:
    def change(template: Any) -> None:
        template["metadata"].setdefault("labels", {})[name] = value

    return change


def _without_gates(template: Any) -> None:
    template["spec"]["schedulingGates"] = []


def _elsewhere(template: Any) -> None:
    template["spec"]["nodeSelector"] = {"example.com/none": "x"}


@OF_KINDS
def test_a_user_changes_a_queued_object_only_in_ways_that_its_queue_sees(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace, _tenant(workspace) as client:
        gang = entry.submit(workspace, "mine", 4)
        gang.runs()
        made, change = _created(workspace, entry, client), client.patch
        path = client.path_of(made)
        kind = KINDS[entry.kind]
        suspend = getattr(getattr(kind, "description", None), "suspend", "spec.suspend")
        refused("only queuectl may resume", change, path, nested(suspend, False))
        refused("gate.*cannot be removed", change, path, _in_templates(made, _without_gates))
        for label in _OWN_LABELS:
            refused("only queuectl writes", change, path, _in_templates(made, _label(label)))
        refused("cannot change its queue", change, path, _OTHER_QUEUE)
        refused("user who created the job", change, path, _OTHER_USER)
        change(path, _in_templates(made, _elsewhere))

        mine = client.path_of(gang.stored[0])
        running = workspace.client.get(mine)
        for patch in (_in_templates(running, _elsewhere), _larger(running)):
            refused("while it runs|immutable", change, mine, patch)
        refused("together with its pods", client.delete, mine, propagationPolicy="Orphan")
        assert {pod.attempt for pod in gang.runs()} == {1}


@OF_KINDS
def test_the_account_of_queuectl_only_starts_stops_and_marks_an_object(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace, account_of_queuectl(workspace) as client:
        made = _created(workspace, entry, workspace.client)
        path = client.path_of(made)
        changes = [
            _in_templates(made, _elsewhere),
            _in_templates(made, _label("example.com/a")),
            {"metadata": {"labels": {"example.com/a": "b"}}},
            *({"spec": fields} for fields in _OTHER_FIELDS.get(entry.kind, ())),
        ]
        if entry.kind != "Job":  # it can start with fewer pods
            changes.append(_larger(made))
        says = "in a queued job, queuectl can change only"
        for change in changes:
            refused(says, client.patch, path, change)
        [own] = entry.documents("own", "queuectl-system", PodSetManifest(4), None)
        refused(says, client.create, client.path_of(own).rpartition("/")[0], own)


@OF_PODS
def test_a_user_changes_nothing_of_a_queued_pod_that_decides_about_it(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace, _tenant(workspace) as client:
        gang = entry.submit(workspace, "mine", 4)
        gang.runs()
        waits = entry.submit(workspace, "waits", 9)
        waits.until("Pending")
        folder, change = f"/api/v1/namespaces/{workspace.namespace}/pods", client.patch
        for one in workspace.pods("waits"):
            path = f"{folder}/{one.name}"
            refused(
                "only queuectl removes the scheduling gate",
                change,
                path,
                {"spec": {"schedulingGates": None}},
            )
            refused(
                "only queuectl decides where", change, path, {"spec": {"nodeSelector": {"a": "b"}}}
            )
        for one in (*workspace.pods("mine"), *workspace.pods("waits")):
            path = f"{folder}/{one.name}"
            for patch in (_OTHER_QUEUE, _OTHER_USER):
                refused(r"of a pod.* cannot change", change, path, patch)
            for label in _OWN_LABELS:
                mark = {"metadata": {"labels": {label: "7"}}}
                refused("only queuectl writes", change, path, mark)
        if "Pod" not in entry.kind:
            # Without its controller, it would run on where its user does not see it.
            for one in workspace.pods("mine"):
                alone = {"metadata": {"ownerReferences": None}}
                refused(r"of a pod.* cannot change", change, f"{folder}/{one.name}", alone)
        assert {pod.attempt for pod in gang.runs()} == {1}
        assert waits.released == []


@OF_CONTROLLERS
def test_pods_that_their_controller_leaves_behind_stay_in_their_queue(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace, _tenant(workspace) as client:
        gang = entry.submit(workspace, "mine", 4)
        before = {pod.uid for pod in gang.runs()}
        names = gang.names
        client.delete(client.path_of(gang.stored[0]), propagationPolicy="Orphan")
        workspace.job("other", PodSetManifest(1, gpus=8))
        until_reason(workspace, "other", "Pending", "WaitingForQuota")
        assert [workspace.state(name) for name in names] == ["Running"] * len(names)
        assert {pod.uid for pod in workspace.running("mine")} == before
        for kind in (
            ("apis/apps/v1", "replicasets"),
            ("apis/apps/v1", "statefulsets"),
            ("api/v1", "pods"),
        ):
            folder = f"/{kind[0]}/namespaces/{workspace.namespace}/{kind[1]}"
            for one in workspace.client.get(folder)["items"]:
                path = f"{folder}/{one['metadata']['name']}"
                workspace.client.delete(path, missing_ok=True, propagationPolicy="Background")
        workspace.until_state("other", "Running")


def test_a_statefulset_that_is_created_again_takes_the_pods_that_it_left_behind(
    installation: Installation,
) -> None:
    """In this way, users change fields of a StatefulSet that an update cannot change. Its controller does nothing for it before it has its pods."""
    [entry] = [one for one in POD_ENTRIES if one.kind == "StatefulSet"]
    with installation.workspace(32) as workspace:
        client = workspace.client
        gang = entry.submit(workspace, "mine", 4)
        before = {pod.uid for pod in gang.runs()}
        path = client.path_of(gang.stored[0])
        client.delete(path, propagationPolicy="Orphan")
        workspace.until(lambda: not client.exists(path), "the StatefulSet is deleted")
        again = client.create(path.rpartition("/")[0], gang.documents[0])
        workspace.until(
            lambda: client.get(path)["status"].get("readyReplicas") == 4, "it has its pods"
        )
        pods = client.get(f"/api/v1/namespaces/{workspace.namespace}/pods")["items"]
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}
        assert owners == {again["metadata"]["uid"]}
        assert {pod.uid for pod in gang.runs()} == before


def test_a_user_adds_no_pod_to_a_group_that_runs(installation: Installation) -> None:
    """A further pod of a group stays gated, and the API server refuses one of a LeaderWorkerSet."""
    entries = {one.kind: one for one in POD_ENTRIES}
    with installation.workspace(96) as workspace, _tenant(workspace) as client:
        group = entries["PodGroup"].submit(workspace, "group", 4)
        leaders = entries["LeaderWorkerSet"].submit(workspace, "set", 4)
        for gang in (group, leaders):
            gang.runs()
        queue = {keys.QUEUE_LABEL: "main"}
        folder = f"/api/v1/namespaces/{workspace.namespace}/pods"
        further = bare_pod(
            "group-forged",
            labels=queue | {keys.PREFIX + keys.POD_GROUP: "group"},
            annotations={keys.PREFIX + keys.POD_GROUP_TOTAL: "4"},
        )
        client.create(folder, further)
        workspace.made.append(f"{folder}/group-forged")
        further = bare_pod(
            "set-0-9",
            labels={**queue, **labels_of("set", 0, 9)},
            annotations={"leaderworkerset.sigs.k8s.io/size": "4"},  # its operator refuses others
        )
        refused("are for the pods of a LeaderWorkerSet", client.create, folder, further)
        workspace.job("later", PodSetManifest(1, gpus=8), seconds=1)
        workspace.until_state("later", "Finished")
        assert [pod.gated for pod in workspace.pods("group") if pod.name == "group-forged"] == [
            True
        ]
        assert [{pod.attempt for pod in gang.runs()} for gang in (group, leaders)] == [{1}, {1}]


@_by_kind([one for one in POD_ENTRIES if one.kind in ("StatefulSet", "LeaderWorkerSet")])
def test_a_user_changes_a_queued_set_only_in_ways_that_its_queue_sees(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace, _tenant(workspace) as client:
        gang = entry.submit(workspace, "mine", 4)
        gang.runs()
        path, change = client.path_of(gang.stored[0]), client.patch
        refused("changes its queue only while it has no replicas", change, path, _OTHER_QUEUE)
        if entry.kind == "StatefulSet":
            refused("change only to 0 or from 0", change, path, {"spec": {"replicas": 5}})
            other = {keys.PREFIX + keys.POD_GROUP_TOTAL: "5"}
            stored = change(path, {"spec": {"template": {"metadata": {"annotations": other}}}})
            kept = stored["spec"]["template"]["metadata"]["annotations"]
            assert kept[keys.PREFIX + keys.POD_GROUP_TOTAL] == "4"
        else:
            submitter = gang.stored[0]["metadata"]["annotations"][keys.SUBMITTED_BY]
            kept = change(path, _OTHER_USER)["metadata"]["annotations"]
            assert kept[keys.SUBMITTED_BY] == submitter
            for label in _OWN_LABELS:
                marked = {"workerTemplate": {"metadata": {"labels": {label: "7"}}}}
                refused("only queuectl writes", change, path,
                    {"spec": {"leaderWorkerTemplate": marked}})  # fmt: skip
        assert {pod.attempt for pod in gang.runs()} == {1}
