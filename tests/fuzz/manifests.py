"""Small clusters as manifests: what the API server adds to pods, pods that were resized, quota that changes, and claims that gangs share.

The readers give each pod the requests and rules that this module computes by the rules of Kubernetes, the verifier accepts the plan, and
the order of the documents changes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.control.checked_plan import checked_plan
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.documents import as_document
from queuectl.objects.files.plans import plan_document
from queuectl.offline.inputs import read_snapshot
from tests.fuzz.figures import Result
from tests.planner.documents import TOPOLOGY, Doc, flavor, groups, nodes, workload

FEATURES: Final = frozenset(
    (
        *("RuntimeClass", "ExtendedResourceToleration", "PodNodeSelector", "PriorityClass"),
        *("resized pod", "QuotaOverride", "quotaFromNodes", "cordoned", "not ready"),
        *("unhealthy devices", "CPU gangs", "StrictFIFO", "minCount 0", "shared claim"),
    )
)
_NOW: Final = 1_767_229_200.0  # 2026-01-01T01:00:00Z
_QUEUES: Final = ("a", "b")


@dataclass
class _Manifests:
    """The documents of one seed. ``asked``: per gang, CPUs of a pod in millis, its node selector, and the keys that it tolerates."""

    rng: random.Random
    on: frozenset[str]
    documents: list[Doc] = field(default_factory=list)
    asked: dict[str, tuple[int, dict[str, str], set[str]]] = field(default_factory=dict)

    def make(self) -> None:
        self.documents += [TOPOLOGY, flavor(topology=True, pool="x"), *self._settings()]
        for name in _QUEUES:
            self.documents += self._queue(name)
        for i in range(self.rng.randint(2, 4)):
            self.documents += self._node(i)
        for i in range(self.rng.randint(2, 5)):
            self.documents.append(self._gang(f"w{i}"))

    def some(self, what: str, chance: float = 0.5) -> bool:
        return what in self.on and self.rng.random() < chance

    def _settings(self) -> list[Doc]:
        plugins = [p for p in ("ExtendedResourceToleration", "PodNodeSelector") if p in self.on]
        selector = {"scheduler.alpha.kubernetes.io/node-selector": "pool=x"}
        meta: Doc = {"name": "default"}
        found: list[Doc] = [
            {
                "apiVersion": "queuectl.dev/v1",
                "kind": "Configuration",
                "metadata": meta,
                "queuectl": {"admissionPlugins": plugins},
            },
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {**meta, "annotations": selector},
            },
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "kata"},
                "overhead": {"podFixed": {"cpu": "2"}},
                "scheduling": {
                    "nodeSelector": {"kata": "yes"},
                    "tolerations": [{"key": "sandbox", "operator": "Exists"}],
                },
            },
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "polite"},
                "value": 0,
                "preemptionPolicy": "Never",
            },
        ]
        if "shared claim" in self.on:
            exactly = {"deviceClassName": "nic", "count": 1}
            found += [
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": "shared", "namespace": "default"},
                    "spec": {"devices": {"requests": [{"name": "n", "exactly": exactly}]}},
                },
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceClass",
                    "metadata": {"name": "nic"},
                    "spec": {},
                },
            ]
        return found

    def _queue(self, name: str) -> list[Doc]:
        spec: Doc = {
            "namespaceSelector": {},
            "resourceGroups": groups(
                {"default": {"gpu": self.rng.choice((4, 8, 16)), "cpu": 64, "pods": 100}}
            ),
            "queueingStrategy": "StrictFIFO" if self.some("StrictFIFO") else "BestEffortFIFO",
        }
        if self.some("quotaFromNodes"):
            spec["policy"] = {"quotaFromNodes": {"headroom": "0%"}}
        found = [_own("ClusterQueue", name, spec), _own("LocalQueue", name, {"clusterQueue": name})]
        if self.some("QuotaOverride"):
            start = self.rng.choice(("2026-01-01T00:30:00Z", "2026-01-02T00:00:00Z"))
            override = {"clusterQueue": name, "flavor": "default", "resource": GPU}
            more = {"add": self.rng.choice((-4, 8)), "from": start, "until": "2026-01-03T00:00:00Z"}
            found.append(_own("QuotaOverride", f"of-{name}", {**override, **more}))
        return found

    def _node(self, number: int) -> list[Doc]:
        gpus = 0 if self.some("CPU gangs", 0.4) else self.rng.choice((4, 8))
        kata = {"kata": "yes"} if self.some("RuntimeClass", 0.7) else {}
        [made] = nodes(f"r{number}-", 1, gpus, pool="x", **kata)
        offered: Doc = made["status"]["allocatable"]
        offered["cpu"] = self.rng.choice((4, 16))
        made["status"]["capacity"] = dict(offered)
        if gpus and self.some("unhealthy devices", 0.4):
            offered[GPU] = gpus - 1
        if gpus and "ExtendedResourceToleration" in self.on:
            made["spec"] = {"taints": [{"key": GPU, "effect": "NoSchedule"}]}
        if self.some("cordoned", 0.3):
            made["spec"] = {**made.get("spec", {}), "unschedulable": True}
        if self.some("not ready", 0.3):
            made["status"]["conditions"][0]["status"] = "False"
        found = [made]
        if self.some("resized pod", 0.6):
            found.append(_resized(f"p{number}", made["metadata"]["name"]))
        if "shared claim" in self.on:
            found.append(_devices(made["metadata"]["name"]))
        return found

    def _gang(self, name: str) -> Doc:
        plain = self.some("CPU gangs")
        made = workload(
            name,
            self.rng.choice(_QUEUES),
            self.rng.choice((1, 1, 2)),
            self.rng.choice((1, 4, 8)),
            priority=self.rng.choice((0, 0, 5)),
            at=self.rng.randint(0, 100),
            rack=self.rng.random() < 0.3,
        )
        podset: Doc = made["spec"]["podSets"][0]
        pod: Doc = podset["template"]["spec"]
        cpus = self.rng.choice((1, 2, 8))
        requests: Doc = {"cpu": cpus}
        if not plain:
            requests |= pod["containers"][0]["resources"]["requests"]
        limits = {n: a for n, a in requests.items() if n == GPU}
        pod["containers"] = [{"name": "c", "resources": {"requests": requests, "limits": limits}}]
        selector: dict[str, str] = {"pool": "x"} if "PodNodeSelector" in self.on else {}
        keys = {GPU} if "ExtendedResourceToleration" in self.on and not plain else set()
        millis = cpus * 1000
        if self.some("RuntimeClass", 0.4):
            pod["runtimeClassName"] = "kata"
            millis, selector, keys = millis + 2000, selector | {"kata": "yes"}, keys | {"sandbox"}
        if self.some("PriorityClass", 0.4):
            made["spec"]["priorityClassName"] = "polite"
        if self.some("minCount 0", 0.4):
            podset["minCount"] = 0
        if self.some("shared claim", 0.5):
            pod["resourceClaims"] = [{"name": "n", "resourceClaimName": "shared"}]
            pod["containers"][0]["resources"]["claims"] = [{"name": "n"}]
        self.asked[name] = millis, selector, keys
        return made


def _own(kind: str, name: str, spec: Doc) -> Doc:
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _resized(name: str, node: str) -> Doc:
    """A pod without a queue that requests one CPU and has three."""
    held = {"cpu": "3"}
    status = {"name": "c", "allocatedResources": held, "resources": {"requests": held}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "other", "uid": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def _devices(node: str) -> Doc:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": "nic.example.com",
            "nodeName": node,
            "pool": pool,
            "devices": [{"name": "n0"}],
        },
    }


class Manifests:
    """The stage."""

    def __call__(self, seed: int) -> Result:
        rng, result = random.Random(f"manifests {seed}"), Result()
        on = frozenset(name for name in sorted(FEATURES) if rng.random() < 0.4)
        made = _Manifests(rng, on)
        made.make()
        result.features = on
        snapshot, plan = _planned(made.documents, result)
        result.counted["starts"] += len(plan["admitted"])
        for entry in snapshot.pending:
            result.defects += self._read(made, entry.workload.name, snapshot)
        for name, used in snapshot.other_pods.items():
            if used["cpu"] != 3000:
                result.defects.append(f"the resized pod on {name} has {used['cpu']}m CPU")
        shuffled = rng.sample(made.documents, len(made.documents))
        if (other := _planned(shuffled, result)[1]) != plan:
            result.defects.append(f"in another order {plan} becomes {other}")
        return result

    @staticmethod
    def _read(made: _Manifests, name: str, snapshot: Snapshot) -> list[str]:
        """The pods of a gang are not those that the API server would create."""
        entry = next(e for e in snapshot.pending if e.workload.name == name)
        millis, selector, keys = made.asked[name]
        shape = entry.workload.podsets[0].shape
        found = (
            shape.requests["cpu"],
            dict(shape.rules.selector),
            {t.key for t in shape.rules.tolerations},
        )
        return (
            []
            if found == (millis, selector, keys)
            else [f"{name}: {found}, not {made.asked[name]}"]
        )


def _planned(documents: list[Doc], result: Result) -> tuple[Snapshot, dict[str, Any]]:
    given = read_snapshot([as_document(one) for one in documents], _NOW)
    checked = checked_plan(given.snapshot)
    result.defects += [f"warning: {one}" for one in given.warnings]
    result.defects += [f"ignored: {one.object}: {one.reason}" for one in given.account.ignored]
    result.defects += [f"verifier: {one}" for one in checked.violations]
    result.defects += [f"alarm: {one}" for one in checked.decided.alarms]
    return given.snapshot, plan_document(checked.original, checked.plan)
