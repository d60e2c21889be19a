"""The hand-over on an API server in memory: it is killed at each write and repeated, and the cluster changes in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import pytest

from queuectl.cli import handover
from queuectl.cli.errors import CommandFailed
from queuectl.cli.handover import lower_class, obstacle, read_hand_over, write_each
from queuectl.cluster.client import Api, NotServed
from queuectl.domain.errors import ObjectGone, WriteConflict, WriteRefused
from queuectl.handover.gangs import Adopted, Queued, Stopped
from queuectl.handover.workloads import API_VERSION
from queuectl.objects import keys
from tests.unit.test_handover import SPACE, UID, config, job, pod, single_pod

Document = dict[str, Any]
WORKLOADS = f"/apis/{API_VERSION}/namespaces/{SPACE}/workloads"
CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{keys.POD_PRIORITY_CLASS}"
CONFIG_MAP = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
PLURALS = {"Topology": "topologies", "WorkloadPriorityClass": "workloadpriorityclasses"}


class Killed(BaseException):
    """The process ends."""


class MemoryApi:
    """The objects by their paths. ``writes_left``: before it is killed; None = it is not."""

    def __init__(self, *, served: str = API_VERSION) -> None:
        self.objects: dict[str, Document] = {}
        self.served = served
        self.writes_left: int | None = None
        self.writes = 0

    def put(self, path: str, document: Document) -> None:
        document = deepcopy(document)
        document["metadata"].setdefault("resourceVersion", "1")
        self.objects[path] = document

    async def request(
        self, method: str, path: str, *, body: Any = None, query: Any = (), **_: Any
    ) -> bytes:
        if method == "GET":
            # Those with a selector are of queuectl, which is removed.
            selected = "labelSelector" in dict(query)
            answer = {"items": [], "metadata": {}} if selected else self._read(path)
            return json.dumps(answer).encode()
        if self.writes_left == 0:
            raise Killed
        if self.writes_left is not None:
            self.writes_left -= 1
        self.writes += 1
        return json.dumps(self._write(method, path, json.loads(json.dumps(body)))).encode()

    def _read(self, path: str) -> Document:
        version, _, rest = path.removeprefix("/apis/").rpartition("/")
        if path in self.objects:
            return self.objects[path]
        if "kueue.x-k8s.io/" in path and not path.startswith(f"/apis/{self.served}/"):
            raise NotServed(path)
        if "/namespaces/" in path or "." in rest or "-" in rest:
            raise ObjectGone(path)
        base = path.rpartition("/")[0]
        items = [
            document
            for place, document in self.objects.items()
            if place.startswith(f"{base}/") and place.split("/")[-2] == rest
        ]
        return {"items": items, "metadata": {"version": version}}

    def _write(self, method: str, path: str, body: Any) -> Document:
        if method == "POST":
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                raise WriteConflict(f"{place} exists")
            self.put(place, body)
            return self.objects[place]
        target = path.removesuffix("/status")
        if target not in self.objects:
            raise ObjectGone(target)
        present = self.objects[target]
        uid = (body or {}).get("metadata", {}).get("uid")
        if uid is not None and uid != present["metadata"].get("uid"):
            raise WriteConflict(f"{target} has another uid")
        if method == "DELETE":
            return self.objects.pop(target)
        self.objects[target] = body if method == "PUT" else _merged(present, body)
        return self.objects[target]


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    kept = {k: v for k, v in old.items() if k not in new}
    return kept | {k: _merged(old.get(k), v) for k, v in new.items() if v is not None}


def cluster_api(**changes: Any) -> MemoryApi:
    """Two running Jobs, one that waits, and a pod with its own queue. Kueue started one of the Jobs."""
    api = MemoryApi(**changes)
    for document in config():
        kind, meta = document["kind"], document["metadata"]
        plural = PLURALS.get(kind, f"{kind.lower()}s")
        place = f"/namespaces/{meta['namespace']}" if kind == "LocalQueue" else ""
        api.put(f"/apis/{API_VERSION}{place}/{plural}/{meta['name']}", document)
    for host in ("h0", "h1"):
        labels = {"kubernetes.io/hostname": host, "pool": "gpu"}
        labels |= {f"topology.queuectl.dev/{one}": "0" for one in ("rack", "block")}
        meta = {"name": host, "labels": labels}
        capacity = {"cpu": "9", "nvidia.com/gpu": "32", "pods": "99"}
        status = {"allocatable": capacity, "capacity": capacity}
        api.put(f"/api/v1/nodes/{host}", {"metadata": meta, "spec": {}, "status": status})
    api.put(f"/api/v1/namespaces/{SPACE}", {"metadata": {"name": SPACE, "labels": {"a": "b"}}})
    for name in ("first", "second", "waits"):
        add_job(api, name, suspend=name == "waits")
    api.put(f"/api/v1/namespaces/{SPACE}/pods/alone", _renamed(single_pod(), "alone", "alone"))
    earlier = {"name": workload_of(api, "first"), "namespace": SPACE, "uid": "earlier"}
    owner = {"kind": "Job", "name": "first", "uid": f"{UID}-first", "controller": True}
    api.put(f"{WORKLOADS}/{earlier['name']}", {"metadata": earlier | {"ownerReferences": [owner]}})
    known = {"metadata": {"name": keys.POD_PRIORITY_CLASS}, "value": 1000000000}
    api.put(CLASS, known | {"description": "kept"})
    return api


def add_job(api: MemoryApi, name: str, *, suspend: bool = False) -> None:
    document = _renamed(job(name, suspend=suspend), name, f"{UID}-{name}")
    labels = document["spec"]["template"]["metadata"]["labels"]
    labels |= {keys.WORKLOAD_LABEL: f"{UID}-{name}"}
    api.put(f"/apis/batch/v1/namespaces/{SPACE}/jobs/{name}", document)
    for rank in () if suspend else (0, 1):
        one = _renamed(pod(rank, f"h{rank}"), f"{name}-{rank}", f"{name}-{rank}")
        one["metadata"].pop("resourceVersion", None)
        one["metadata"]["ownerReferences"][0] |= {"name": name, "uid": f"{UID}-{name}"}
        api.put(f"/api/v1/namespaces/{SPACE}/pods/{name}-{rank}", one)


def _renamed(document: Document, name: str, uid: str) -> Document:
    document["metadata"] |= {"name": name, "uid": uid, "namespace": SPACE}
    return document


def workload_of(api: MemoryApi, name: str) -> str:
    """The name that Kueue gives to the Workload of a Job."""
    from queuectl.objects.kueue_names import workload_name

    document = api.objects[f"/apis/batch/v1/namespaces/{SPACE}/jobs/{name}"]
    return workload_name("Job", "batch", name, document["metadata"]["uid"])


async def hand_over(api: MemoryApi) -> dict[str, str]:
    """Errors by the names of the jobs."""
    connection = cast(Api, api)
    planned = await read_hand_over(connection)
    continuing = [one for one in planned.fates if isinstance(one, (Adopted, Queued))]
    assert len(continuing) == len(planned.fates), planned.fates
    errors = {
        fate.owner.name: error async for fate, error in write_each(connection, planned, continuing)
    }
    await lower_class(connection)
    return errors


def comparable(objects: Mapping[str, Document]) -> Mapping[str, Document]:
    """Without what a repetition can change: the podset of a pod repeats the marks that the pod got, as in Kueue."""
    copied: dict[str, Document] = json.loads(json.dumps(objects))
    for path, document in copied.items():
        document["metadata"].pop("resourceVersion", None)
        if path.startswith(f"{WORKLOADS}/pod-"):
            [podset] = document["spec"]["podSets"]
            del podset["topologyRequest"], podset["template"]["metadata"]
    # A class that was deleted when the command was killed loses its description.
    assert copied.pop(CLASS).keys() >= {"metadata", "value", "preemptionPolicy"}
    return copied


def test_a_hand_over_that_is_killed_at_any_write_ends_the_same_when_it_is_repeated() -> None:
    whole = cluster_api()
    assert set(asyncio.run(hand_over(whole)).values()) == {""}
    written = [path for path in whole.objects if path.startswith(WORKLOADS)]
    assert len(written) == 3
    assert all("admission" in whole.objects[path]["status"] for path in written)
    assert whole.objects[CLASS]["value"] == 0
    for killed_at in range(whole.writes):
        api = cluster_api()
        api.writes_left = killed_at
        with pytest.raises(Killed):
            asyncio.run(hand_over(api))
        api.writes_left = None
        assert set(asyncio.run(hand_over(api)).values()) == {""}
        assert comparable(api.objects) == comparable(whole.objects), killed_at
        assert api.objects[CLASS]["value"] == 0, killed_at


def test_a_gang_that_ends_in_between_does_not_stop_the_others() -> None:
    api = cluster_api()
    jobs = f"/apis/batch/v1/namespaces/{SPACE}/jobs"

    async def run() -> dict[str, str]:
        connection = cast(Api, api)
        planned = await read_hand_over(connection)
        continuing = [one for one in planned.fates if isinstance(one, (Adopted, Queued))]
        del api.objects[f"{jobs}/first"]  # deleted
        api.objects[f"{jobs}/second"]["metadata"]["uid"] = "again"  # created again
        del api.objects[f"/api/v1/namespaces/{SPACE}/pods/alone"]
        return {
            fate.owner.name: error
            async for fate, error in write_each(connection, planned, continuing)
        }

    errors = asyncio.run(run())
    assert errors.keys() == {"first", "second", "waits", "alone"}
    assert errors["first"] == errors["alone"] == "it was deleted in the meantime"
    assert "another uid" in errors["second"]
    assert errors["waits"] == ""
    assert [path for path in api.objects if path.startswith(WORKLOADS)] == [
        f"{WORKLOADS}/{workload_of(cluster_api(), 'first')}"
    ], "only the earlier one is left"


def test_a_workload_of_another_job_with_the_same_name_is_never_changed() -> None:
    for owners, of in (
        ([{"kind": "Job", "name": "other", "uid": "o", "controller": True}], "Job other"),
        ([], "no job"),
    ):
        api = cluster_api()
        place = f"{WORKLOADS}/{workload_of(api, 'second')}"
        name = place.rpartition("/")[2]
        api.put(place, {"metadata": {"name": name, "namespace": SPACE, "ownerReferences": owners}})
        before = deepcopy(api.objects[place])
        planned = asyncio.run(read_hand_over(cast(Api, api)))
        [stopped] = [one for one in planned.fates if isinstance(one, Stopped)]
        assert stopped.owner.name == "second"
        assert f"Workload {name} exists and belongs to {of}: delete it" in stopped.reason
        assert api.objects[place] == before


def test_a_workload_in_another_namespace_with_the_uid_of_a_job_is_not_changed() -> None:
    api = cluster_api()
    owner = {"kind": "Job", "name": "second", "uid": f"{UID}-second", "controller": True}
    meta = {"name": "copied", "namespace": "elsewhere", "ownerReferences": [owner]}
    place = f"{WORKLOADS.replace(SPACE, 'elsewhere')}/copied"
    api.put(place, {"metadata": meta})
    before = deepcopy(api.objects[place])
    assert set(asyncio.run(hand_over(api)).values()) == {""}
    assert api.objects.get(place) == before


def test_jobs_that_kueue_does_not_manage_are_named() -> None:
    """No controller would remove the finalizers of Kueue from their pods and Workloads."""
    head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    batch = "integrations: {frameworks: [batch/job]}\n"
    every = "integrations: {frameworks: [batch/job, pod]}\n"
    labeled = "managedJobsNamespaceSelector: {matchLabels: {a: %s}}\n"
    cases: tuple[tuple[str, dict[str, str]], ...] = (
        (every, {}),
        (every + labeled % "b", {}),
        (batch, {"alone": "integrations.frameworks of Kueue does not name pod"}),
        ("", {"alone": "integrations.frameworks of Kueue does not name pod"}),
        (
            every + labeled % "c",
            dict.fromkeys(
                ("first", "second", "waits", "alone"),
                f"managedJobsNamespaceSelector of Kueue does not select namespace {SPACE}",
            ),
        ),
        (
            every + f"namespace: {SPACE}\n",
            dict.fromkeys(("first", "second", "waits", "alone"), "does not select namespace"),
        ),
    )
    for text, expected in cases:
        api = cluster_api()
        data = {"controller_manager_config.yaml": head + text}
        api.put(CONFIG_MAP, {"metadata": {"name": "kueue-manager-config"}, "data": data})
        planned = asyncio.run(read_hand_over(cast(Api, api)))
        stopped = {one.owner.name: one.reason for one in planned.fates if isinstance(one, Stopped)}
        assert stopped.keys() == expected.keys(), text
        assert all(expected[name] in reason for name, reason in stopped.items()), stopped
        assert not planned.warnings


def test_a_configuration_of_kueue_that_cannot_be_read_is_a_warning() -> None:
    for content, reason in ((None, "does not exist"), ("kind: [", "cannot be read")):
        api = cluster_api()
        if content is not None:
            data = {"controller_manager_config.yaml": content}
            api.put(CONFIG_MAP, {"metadata": {"name": "kueue-manager-config"}, "data": data})
        planned = asyncio.run(read_hand_over(cast(Api, api)))
        [warning] = planned.warnings
        assert f"the Configuration of Kueue {reason}" in warning
        assert not [one for one in planned.fates if isinstance(one, Stopped)]


def test_nothing_is_written_where_kueue_runs_or_serves_only_older_versions() -> None:
    older = cluster_api(served="kueue.x-k8s.io/v1beta1")
    text = asyncio.run(obstacle(cast(Api, older)))
    assert text is not None
    assert "Kueue 0.15 or newer" in text
    api = cluster_api()
    meta = {"name": "mine-kueue-controller-manager", "namespace": "mine"}
    place = "/apis/apps/v1/namespaces/mine/deployments/mine-kueue-controller-manager"
    for replicas, runs in ((0, False), (1, True)):
        api.put(place, {"metadata": meta, "spec": {"replicas": replicas}})
        text = asyncio.run(obstacle(cast(Api, api)))
        assert (text is not None) is runs, text
    assert text is not None
    assert "scale Deployment mine/mine-kueue-controller-manager" in text


def test_a_kueue_that_starts_in_between_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_CHECK_SECONDS", 0.0)
    api = cluster_api()
    webhook = "validatingwebhookconfigurations/kueue-validating-webhook-configuration"
    place = f"/apis/admissionregistration.k8s.io/v1/{webhook}"

    async def run() -> None:
        connection = cast(Api, api)
        planned = await read_hand_over(connection)
        continuing = [one for one in planned.fates if isinstance(one, (Adopted, Queued))]
        async for _ in write_each(connection, planned, continuing):
            api.put(place, {"metadata": {"name": "kueue-validating-webhook-configuration"}})

    with pytest.raises(CommandFailed, match="the webhooks of Kueue exist") as failed:
        asyncio.run(run())
    assert "1 job handled" in str(failed.value)
    del api.objects[place]
    assert set(asyncio.run(hand_over(api)).values()) == {""}


def test_a_conflict_of_one_pod_is_named_and_a_repetition_fixes_it() -> None:
    api = cluster_api()
    place = f"/api/v1/namespaces/{SPACE}/pods/second-0"
    uid = api.objects[place]["metadata"]["uid"]

    async def run() -> dict[str, str]:
        connection = cast(Api, api)
        planned = await read_hand_over(connection)
        api.objects[place]["metadata"]["uid"] = "replaced"
        continuing = [one for one in planned.fates if isinstance(one, (Adopted, Queued))]
        return {
            fate.owner.name: error
            async for fate, error in write_each(connection, planned, continuing)
        }

    errors = asyncio.run(run())
    assert "another uid" in errors.pop("second")
    assert set(errors.values()) == {""}
    api.objects[place]["metadata"]["uid"] = uid
    assert set(asyncio.run(hand_over(api)).values()) == {""}


def test_a_refused_configmap_is_a_warning() -> None:
    class Refusing(MemoryApi):
        def _read(self, path: str) -> Document:
            if "/configmaps/" in path:
                raise WriteRefused("403: forbidden")
            return super()._read(path)

    api = Refusing()
    api.objects = cluster_api().objects
    planned = asyncio.run(read_hand_over(cast(Api, api)))
    assert "403: forbidden" in planned.warnings[0]
