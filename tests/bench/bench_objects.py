"""Configuration as objects of queuectl.dev: until a leader follows them, statuses written in a minute, and the memory of the controller.

    python -m tests.bench.bench_objects [CLUSTERQUEUES LOCALQUEUES]

A real API server with the CRDs, and ``queuectl serve`` with PostgreSQL and ``configuration.owner: kubernetes``. etcd runs without fsync.
With the default of 1,000 ClusterQueues and 5,000 LocalQueues it takes half an hour, because 5 statuses are written in a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, get_plain, wait_until
from tests.bench.stage import cpu_of, peak_of, resident_of
from tests.operations.custom import defined
from tests.system.installation import leading_controller, policies

SETTINGS = {
    "QUEUECTL_CONFIGURATION_OWNER": "kubernetes",
    # The defaults. Those of the tests are so short that a busy machine loses the lease.
    "QUEUECTL_LEASE_DURATION": "15",
    "QUEUECTL_LEASE_RENEW": "3",
}
ROOT = "/apis/queuectl.dev/v1"
NAMESPACES = 100
EDITS = 10
_PAUSE = 3.0
"""Seconds between two edits."""
_EVERY = 15.0
"""Seconds between two counts of the statuses."""
_SECONDS = 600.0


def queues(count: int) -> Iterator[Document]:
    """ClusterQueues, 20 in each Cohort."""
    for number in range(count):
        made = m.cluster_queue(f"queue-{number}", "gpu", {"nvidia.com/gpu": 8, "cpu": "1M"})
        made["spec"]["cohortName"] = f"cohort-{number // 20}"
        yield made


def local_queues(count: int, targets: int) -> Iterator[Document]:
    for number in range(count):
        namespace = f"team-{number % NAMESPACES}"
        yield m.local_queue(namespace, f"local-{number}", f"queue-{number % targets}")


@contextmanager
def with_definitions(cluster: LocalCluster) -> Iterator[None]:
    defined(cluster)
    with policies(cluster):
        yield


def catalog(api: str) -> int:
    """The number of queues in the catalog."""
    lists = (
        get_plain(f"{api}/api/v1/{kind}", timeout=60.0) for kind in ("clusterqueues", "localqueues")
    )
    return sum(len(one.json()["items"]) for one in lists if one.is_success)


def written(client: Client) -> int:
    """The number of objects whose status is about their newest generation."""
    return sum(
        _current(one)
        for kind in ("resourceflavors", "clusterqueues", "localqueues")
        for one in pages(client, f"{ROOT}/{kind}")
    )


def pages(client: Client, path: str) -> Iterator[Document]:
    """The objects of a list, some at a time."""
    more = ""
    while True:
        page = client.get(path, limit="500", **{"continue": more})
        yield from page["items"]
        if not (more := page["metadata"].get("continue", "")):
            return


def _current(body: Any) -> bool:
    seen = body.get("status", {}).get("observedGeneration")
    return bool(seen == body["metadata"]["generation"])


def edited(client: Client, pid: int, number: int) -> tuple[float, float]:
    """Seconds from more quota for one queue until its status is about it, and the CPU seconds of the controller in this time."""
    path = f"{ROOT}/clusterqueues/queue-{number}"
    spec = client.get(path)["spec"]
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 16 + number
    used, began = cpu_of(pid), time.monotonic()
    client.patch(path, {"spec": spec})
    wait_until(lambda: _ready(client.get(path)), "the status after an edit", 60.0)
    return time.monotonic() - began, cpu_of(pid) - used


def _ready(body: Document) -> bool:
    conditions = body.get("status", {}).get("conditions", [])
    states = {one["type"]: one["status"] for one in conditions}
    return _current(body) and states == {"Active": "True", "Ready": "True"}


def edits(client: Client, pid: int, first: int, when: str) -> None:
    """Print the times of some edits, each of another queue."""
    times = []
    for number in range(first, first + EDITS):
        time.sleep(_PAUSE)
        times.append(edited(client, pid, number))
    walls, used = (sorted(each) for each in zip(*times, strict=True))
    text = f"{median(walls):.1f} s, at most {walls[-1]:.1f} s; CPU of the controller {median(used):.2f} s"
    print(f"status after an edit {when}: {text}; load {os.getloadavg()[0]:.0f}", flush=True)


def run(cluster_queues: int, locals_: int) -> None:
    total = cluster_queues + locals_ + 1
    nodes = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=4)
    with leading_controller(nodes, SETTINGS, with_definitions, operators=()) as (
        cluster,
        controller,
    ):
        client = cluster.client
        client.apply(*m.namespaces(f"team-{number}" for number in range(NAMESPACES)))
        print(f"memory without objects: {resident_of(controller.pid):.0f} MiB", flush=True)
        began = time.monotonic()
        client.apply(m.flavor("gpu"))
        client.each(client.apply, queues(cluster_queues))
        client.each(client.apply, local_queues(locals_, cluster_queues))
        created = time.monotonic()
        print(f"{total} objects created in {created - began:.0f} s", flush=True)
        wait_until(
            lambda: catalog(controller.api) >= cluster_queues + locals_,
            "all in the catalog",
            _SECONDS,
        )
        print(f"all in the catalog {time.monotonic() - created:.1f} s later", flush=True)
        statuses(client, controller.pid, created, total)
        pid = controller.pid
        print(f"memory: {resident_of(pid):.0f} MiB, peak {peak_of(pid):.0f} MiB")


def statuses(client: Client, pid: int, created: float, total: int) -> None:
    """Print the rate until all statuses are written."""
    first, began = written(client), time.monotonic()
    edits(client, pid, 0, "amid the others")
    before, at = written(client), time.monotonic()
    while before < total:
        time.sleep(_EVERY)
        count, now = written(client), time.monotonic()
        rate = 60 * (count - before) / (now - at)
        text = f"{count} statuses after {now - created:.0f} s, {rate:.0f} in a minute"
        print(f"{text}, {resident_of(pid):.0f} MiB, load {os.getloadavg()[0]:.0f}", flush=True)
        before, at = count, now
    mean = 60 * (total - first) / (time.monotonic() - began)
    print(f"all statuses {time.monotonic() - created:.0f} s after the last object")
    print(f"statuses in a minute: {mean:.0f}", flush=True)
    edits(client, pid, EDITS, "alone")


if __name__ == "__main__":
    run(*(map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (1_000, 5_000)))
