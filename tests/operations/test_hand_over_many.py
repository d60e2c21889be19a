"""``queuectl kueue hand-over`` of 1,000 running gangs on an API server: killed halfway and repeated, with its time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.progress import LineProgress
from tests.bench.kueue.peer import API
from tests.support.kueue import QUEUE_LABEL
from tests.support.real_kueue import definitions

pytestmark = [pytest.mark.operations, pytest.mark.timeout(1200)]

SPACE: Final = "research"
GANGS: Final = 1000
MOST_SECONDS: Final = 300.0
"""It takes about 25 s on a quiet machine with two cores."""
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COMMAND: Final = (str(Path(sys.executable).with_name("queuectl")), "kueue", "hand-over")


def configuration() -> list[Document]:
    flavor = m.flavor("cpu", **{"kubernetes.io/os": "linux"})
    queue = m.cluster_queue("pool", "cpu", {"cpu": GANGS, "memory": "1P"})
    documents = [flavor, queue, m.local_queue(SPACE, "team", "pool")]
    return [one | {"apiVersion": API} for one in documents]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """1,000 running Jobs of one pod, without a controller of queues."""
    nodes = NodeSpec(blocks=1, racks_per_block=2, hosts_per_rack=10)
    with LocalCluster.start(
        ClusterSpec(nodes=(nodes,), fsync=False), progress=LineProgress()
    ) as started:
        client = started.client
        client.apply(*m.namespaces([SPACE]), *definitions())
        wait_until(lambda: client.get(f"/apis/{API}") is not None, "Kueue's kinds", 60.0)
        client.apply(*configuration())
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: submit(started, number), range(GANGS)))
        wait_until(lambda: len(running(started)) == GANGS, "the Jobs run", 600.0)
        yield started


def submit(cluster: LocalCluster, number: int) -> None:
    document = m.job(f"j{number}", SPACE, None, PodSetManifest(1, cpu="10m"))
    document["metadata"]["labels"] = {QUEUE_LABEL: "team"}
    cluster.client.create(f"/apis/batch/v1/namespaces/{SPACE}/jobs", document)


def running(cluster: LocalCluster) -> set[str]:
    """The uids of the pods that run."""
    pods = cluster.client.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    return {one["metadata"]["uid"] for one in pods if one["status"]["phase"] == "Running"}


def workloads(cluster: LocalCluster) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = cluster.client.get(f"/apis/{API}/workloads")["items"]
    return listed


def test_a_thousand_gangs_are_handed_over_in_minutes_also_after_a_kill(
    cluster: LocalCluster,
) -> None:
    before = running(cluster)
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for number, line in enumerate(killed.stdout):
            assert "continues as Workload" in line
            if number == GANGS // 3:
                killed.kill()
                break
    assert 0 < len(workloads(cluster)) < GANGS
    began = time.monotonic()
    ended = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    assert ended.returncode == 0, ended.stderr
    assert f"{GANGS} adopted, 0 queued, 0 stopped by Kueue" in ended.stdout
    written = workloads(cluster)
    assert len(written) == GANGS
    assert all(one["status"]["admission"]["clusterQueue"] == "pool" for one in written)
    assert running(cluster) == before
    print(f"{GANGS} gangs: {seconds:.0f} s")
    assert seconds < MOST_SECONDS


def test_an_object_in_an_older_version_is_named_and_can_be_replaced(cluster: LocalCluster) -> None:
    """Without Kueue, its conversion webhook does not answer. docs/how-to/back-to-kueue.md has the commands."""
    client = cluster.client
    older = API.replace("v1beta2", "v1beta1")
    [definition] = [
        one for one in definitions() if one["spec"]["names"]["plural"] == "resourceflavors"
    ]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}

    def dry_run() -> subprocess.CompletedProcess[str]:
        command = (*COMMAND, "--dry-run")
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def stored_in(version: str, conversion: Document) -> None:
        changed = deepcopy(definition)
        changed["spec"]["conversion"] = conversion
        for one in changed["spec"]["versions"]:
            one["storage"] = one["name"] == version
        client.apply(changed)

    flavor = m.flavor("older") | {"apiVersion": older}
    dead = {"url": "https://127.0.0.1:1/convert"}
    webhook = {"clientConfig": dead, "conversionReviewVersions": ["v1"]}
    stored_in("v1beta1", {"strategy": "None"})
    place = f"{DEFINITIONS}/{definition['metadata']['name']}"
    wait_until(
        lambda: "v1beta1" in client.get(place)["status"]["storedVersions"],
        "the older version is the stored one",
        60.0,
    )
    time.sleep(2)  # the server follows the definition a moment later
    client.create(f"/apis/{older}/resourceflavors", flavor)
    stored_in("v1beta2", {"strategy": "Webhook", "webhook": webhook})
    wait_until(lambda: dry_run().returncode != 0, "the API server converts", 60.0)
    failed = dry_run()
    assert "conversion webhook" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr
    client.delete(f"/apis/{older}/resourceflavors/older")
    client.apply(flavor | {"apiVersion": API})
    ended = dry_run()
    assert ended.returncode == 0, ended.stderr
    assert f"{GANGS} would be adopted" in ended.stdout
