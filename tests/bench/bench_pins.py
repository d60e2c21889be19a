"""Two ways to pin a pod to its node, a hostname in its node selector or the node's name in its required node affinity; and its rack.

    python -m tests.bench.bench_pins [--nodes 1000] [--pods 500] [--rounds 4] [--kubernetes 1.36.3]

Batches of gated pods are pinned each way in turns, on one control plane. The pods of a batch are created before
the measurement, and stay. CPU time is that of each component from the first patch until all pods are bound. Neither
kubelets nor controllers run, so no other write of a pod or a node disturbs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx2

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.writes import merge_patch
from queuectl.domain.fleet import HOSTNAME
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Document, wait_until
from queuectl.localcluster.versions import KUBERNETES
from queuectl.objects.keys import GATE
from queuectl.objects.kubernetes.pods import NO_FIELD_OWNERS
from tests.bench.stage import RACK, cpu_of

PODS: Final = "/api/v1/namespaces/pins/pods"
GPUS: Final = 8  # of a node
UNBOUND: Final = (("fieldSelector", "spec.nodeName="), ("limit", "1"))
PATIENCE: Final = 180.0  # seconds for one batch
EVALUATIONS: Final = "scheduler_plugin_evaluation_total"
FILTER: Final = "scheduler_framework_extension_point_duration_seconds_sum"


def by_hostname(node: str) -> dict[str, Any]:
    """A node selector with the hostname."""
    return {"nodeSelector": {HOSTNAME: node}}


def by_name(node: str) -> dict[str, Any]:
    """A required node affinity to the node's name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def by_rack(node: str) -> dict[str, Any]:
    """A node selector with the rack, as in the template of a gang that starts without gates."""
    return {"nodeSelector": {RACK: node.rpartition("-")[0]}}


WAYS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "hostname": by_hostname,
    "name": by_name,
    "rack": by_rack,
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of CPU time up to now, and evaluations of NodeAffinity's filter."""

    scheduler: float
    server: float
    database: float
    evaluations: float
    filtering: float

    def since(self, before: Costs) -> Costs:
        """The costs after ``before``."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Costs(*(now - then for now, then in pairs))


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. Times are in seconds, ``client`` is the CPU time of the program that pins; sizes are in bytes."""

    sent: float
    bound: float
    client: float
    costs: Costs
    patch: int
    pod: int


class Rig:
    """A control plane with nodes, and the client that pins."""

    def __init__(self, cluster: LocalCluster, nodes: list[str]) -> None:
        self._cluster = cluster
        random.Random(0).shuffle(nodes)
        self._slots = iter(nodes * GPUS)
        self._pods = iter(range(len(nodes) * GPUS))
        self._scheduler = _address(cluster.pids()["kube-scheduler"])
        self._http = httpx2.Client(verify=cluster.tls(), trust_env=False, timeout=30.0)

    def batch(self, way: Callable[[str], dict[str, Any]], pods: int) -> Batch:
        """Create pods, pin them, and wait until they are bound."""
        documents = [pod(number) for number in islice(self._pods, pods)]
        patches: dict[str, dict[str, Any]] = {}

        def create(asked: Document) -> None:
            found = self._cluster.client.create(PODS, asked)
            patches[found["metadata"]["name"]] = _patch(found, way(next(self._slots)))

        self._cluster.client.each(create, documents)
        before, began = self._costs(), time.monotonic()
        sent, client = asyncio.run(self._pin(patches))
        bound = time.monotonic() - began
        after = self._costs()
        name, patch = next(iter(patches.items()))
        seen = self._cluster.client.get(f"{PODS}/{name}")
        size = len(json.dumps(patch, separators=(",", ":")))
        spent = after.since(before)
        return Batch(sent, bound, client, spent, size, len(json.dumps(seen)))

    async def _pin(self, patches: Mapping[str, dict[str, Any]]) -> tuple[float, float]:
        """Send all patches, as the controller does. Returns the time until all were sent, and its CPU time."""
        connection = Connection(kubeconfig=self._cluster.kubeconfig)
        api = await Api.connect(connection)
        try:
            permits = asyncio.Semaphore(connection.in_flight)

            async def send(name: str, patch: dict[str, Any]) -> None:
                async with permits:
                    await merge_patch(api, f"{PODS}/{name}", patch)

            began, used = time.monotonic(), time.process_time()
            async with asyncio.TaskGroup() as group:
                for name, patch in patches.items():
                    group.create_task(send(name, patch))
            sent, client = time.monotonic() - began, time.process_time() - used
            while time.monotonic() - began < PATIENCE:
                body = await api.request("GET", PODS, query=UNBOUND)
                if not json.loads(body)["items"]:
                    return sent, client
                await asyncio.sleep(0.05)
            raise TimeoutError(f"not all pods are bound after {PATIENCE:.0f} s")
        finally:
            await api.close()

    def _costs(self) -> Costs:
        pids, text = self._cluster.pids(), self._http.get(f"{self._scheduler}/metrics").text
        return Costs(
            cpu_of(pids["kube-scheduler"]),
            cpu_of(pids["kube-apiserver"]),
            cpu_of(pids["etcd"]),
            _sum(text, EVALUATIONS, 'extension_point="Filter"', 'plugin="NodeAffinity"'),
            _sum(text, FILTER, 'extension_point="Filter"'),
        )


def pod(number: int) -> Document:
    """A gated pod that requests one GPU, as large as those of training jobs."""
    variables = [{"name": f"VARIABLE_{n}", "value": f"of-a-training-job-{n}"} for n in range(25)]
    container = {
        "name": "main",
        "image": "example.com/trainer:1",
        "env": variables,
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number:05}", "labels": {"app": "pins"}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "schedulingGates": [{"name": GATE}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _patch(document: Document, pin: dict[str, Any]) -> dict[str, Any]:
    meta = document["metadata"]
    frame = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    return {
        "metadata": {**frame, "managedFields": NO_FIELD_OWNERS},
        "spec": {"schedulingGates": [], **pin},
    }


def _address(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    port = next(text for text in arguments if text.startswith("--secure-port="))
    return f"https://127.0.0.1:{port.partition('=')[2]}"


def _sum(text: str, name: str, *labels: str) -> float:
    lines = re.findall(rf"^{name}\{{([^}}]*)\}} ([\d.e+-]+)$", text, re.MULTILINE)
    return sum(float(number) for found, number in lines if all(label in found for label in labels))


@contextmanager
def rig(nodes: int, kubernetes: str) -> Iterator[Rig]:
    """A control plane with so many nodes of 8 GPUs, in racks of ten and blocks of ten racks."""
    spec = NodeSpec(blocks=max(1, nodes // 100), racks_per_block=10, hosts_per_rack=10)
    parts = ClusterSpec(nodes=(), fsync=False, operators=(), kubernetes=kubernetes)
    with LocalCluster.start(parts) as cluster:
        cluster.client.create("/api/v1/namespaces", {"metadata": {"name": "pins"}})
        account = "/api/v1/namespaces/pins/serviceaccounts/default"
        wait_until(lambda: cluster.client.exists(account), "the ServiceAccount", 60.0)
        for component in ("kwok", "kube-controller-manager"):
            cluster.kill(component)
        # The pods tolerate that no kubelet has reported that it is ready.
        yield Rig(cluster, cluster.nodes.create(spec, wait_seconds=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="a multiple of 100")
    parser.add_argument("--pods", type=int, default=500, help="in a batch")
    parser.add_argument("--rounds", type=int, default=4, help="batches of each way")
    parser.add_argument("--kubernetes", default=KUBERNETES)
    options = parser.parse_args()
    batches: dict[str, list[Batch]] = {name: [] for name in WAYS}
    with rig(options.nodes, options.kubernetes) as bench:
        bench.batch(by_name, 50)  # the first pods of a scheduler cost more
        for number in range(options.rounds):
            for name in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                batches[name].append(bench.batch(WAYS[name], options.pods))
                print(f"  {name}: {batches[name][-1]}", flush=True)
    print(
        f"\n{options.nodes} nodes, {options.rounds} × {options.pods} pods, Kubernetes {options.kubernetes}"
    )
    for label, of in (
        ("until all are pinned, s", lambda b: b.sent),
        ("until all are bound, s", lambda b: b.bound),
        ("kube-scheduler, ms/pod", lambda b: 1000 * b.costs.scheduler / options.pods),
        ("its filters, ms/pod", lambda b: 1000 * b.costs.filtering / options.pods),
        ("nodes that it filtered for a pod", lambda b: b.costs.evaluations / options.pods),
        ("API server, ms/pod", lambda b: 1000 * b.costs.server / options.pods),
        ("etcd, ms/pod", lambda b: 1000 * b.costs.database / options.pods),
        ("client that pins, ms/pod", lambda b: 1000 * b.client / options.pods),
        ("patch, bytes", lambda b: b.patch),
        ("bound pod, bytes", lambda b: b.pod),
    ):
        cells = (statistics.median(map(of, batches[name])) for name in WAYS)
        print(f"| {label} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
