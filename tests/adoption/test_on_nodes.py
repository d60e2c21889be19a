"""The way of a platform engineer on real nodes, as the pages have it: queuectl and Kueue in an empty cluster, and from Kueue to shadow mode,
to live, and back.

    make image && .venv/bin/python -m tests.adoption.kueue && make e2e-real TESTS=tests/adoption

It prints the commands with their seconds, and writes them to `build/adoption/on-nodes.md`. Images are on the nodes before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from tests.adoption import kueue, ways
from tests.adoption.walk import SECONDS, Walk
from tests.real import images, sandbox
from tests.real.cluster import real_nodes
from tests.real.deployment import ARCHIVE
from tests.real.node import Shape
from tests.support.chart import helm_program
from tests.system.demo_cluster import tools
from tests.system.transcript import ROOT, shell

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

SHAPES: Final = tuple(
    Shape(f"node-{n}", n, 2, {BLOCK: "b0", RACK: f"r{n}", PRODUCT: "test-device"}) for n in range(2)
)
REPORT: Final = ROOT / "build" / "adoption" / "on-nodes.md"
INSTEAD: Final = {
    "registry.example.com/queuectl": "queuectl",
    "shadow=true": "shadow=true --set database.bundled.persistent=false",
    "configuration.owner=kueue": "configuration.owner=kueue --set database.bundled.persistent=false",
}
"""The nodes have the image, and the cluster has no StorageClass."""
SHORT: Final = 30
LONG: Final = 7200


@contextmanager
def walking(folder: Path, *, with_kueue: bool) -> Iterator[tuple[LocalCluster, Walk]]:
    """An empty cluster whose nodes have the images."""
    with real_nodes(SHAPES) as (plane, nodes):
        archives = [ARCHIVE, kueue.archive(folder)] if with_kueue else [ARCHIVE]
        for node in nodes.values():
            for archive in archives:
                node.import_archive(archive)
        environment = tools(plane)
        path = f"{helm_program().parent}:{environment['PATH']}"
        with shell(environment | {"PATH": path}) as started:
            yield plane, Walk(started, INSTEAD)


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    if sandbox.home() is None:
        pytest.skip("real nodes exist in the sandbox of `make e2e-real` only")
    if not ARCHIVE.exists():
        pytest.skip(f"no image: run make image to write {ARCHIVE}")
    if not kueue.is_built():
        pytest.skip("no Kueue: run python -m tests.adoption.kueue to build it")


def test_an_empty_cluster_to_the_first_gang(tmp_path: Path) -> None:
    with walking(tmp_path, with_kueue=False) as (plane, walk):
        # The cluster has no StorageClass, and its nodes cannot pull the image of the example.
        walk.instead = {
            "repository=registry.example.com/queuectl": "repository=queuectl --set database.bundled.persistent=false",
            "create -f docs/examples/first-job.yaml": "create -f first-job.yaml",
        }
        example = (ROOT / "docs" / "examples" / "first-job.yaml").read_text()
        assert "busybox:1.37" in example
        walk.shell.folder.joinpath("first-job.yaml").write_text(
            example.replace("busybox:1.37", images.BASE.name)
        )
        ways.first_gang(walk, lambda: succeeded(plane, "first"))
        save(walk, "queuectl.md")


def test_kueue_to_shadow_mode_to_live_and_back(tmp_path: Path) -> None:
    with walking(tmp_path, with_kueue=True) as (plane, walk):
        kubectl = plane.kubectl
        assert kubectl is not None
        folder = walk.shell.folder
        folder.joinpath("manifests.yaml").write_text(kueue.manifests(kubectl))
        folder.joinpath("queues.yaml").write_text(kueue.QUEUES)
        for name, pods, seconds in (("first", 2, SHORT), ("runs", 2, LONG), ("waits", 4, SHORT)):
            document = kueue.job(name, pods, images.BASE.name, seconds)
            folder.joinpath(f"{name}.yaml").write_text(kueue.written(document))
        try:
            ways.first_job_of_kueue(walk, lambda: succeeded(plane, "first"))
            for name in ("runs", "waits"):
                walk.shell.type(f"kubectl create -f {name}.yaml")
            wait_until(lambda: len(running(plane, "runs")) == 2, "the pods of runs", SECONDS)
            before = running(plane, "runs")
            ways.shadow(walk)
            assert "waits" in folder.joinpath("shadow.html").read_text()
            ways.live(walk, lambda: "Running" in states(walk).get("runs", ""))
            assert running(plane, "runs") == before
            assert states(walk)["waits"] == "Pending"
            ways.back(walk, lambda: admitted(plane, "runs"))
            assert running(plane, "runs") == before
            assert not admitted(plane, "waits")
        finally:
            save(walk, "kueue.md")
            print(problems(walk))


def save(walk: Walk, name: str) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    (REPORT.parent / name).write_text(walk.table() + "\n")
    print(f"\n{walk.table()}")


def problems(walk: Walk) -> str:
    """The state of the cluster and the last lines of the logs."""
    listed = "kubectl get pods,jobs,workloads.kueue.x-k8s.io,apiservices,events -A"
    logs = "kubectl -n queuectl-system logs --all-containers --tail 20 -l app.kubernetes.io/name=queuectl"
    return walk.shell.type(
        f"{listed}; {logs}; kubectl -n kueue-system logs --tail 20 deploy/kueue-controller-manager"
    )[1]


def succeeded(plane: LocalCluster, name: str) -> bool:
    status = plane.client.get(f"/apis/batch/v1/namespaces/default/jobs/{name}")["status"]
    return bool(status.get("succeeded") == 2)


def running(plane: LocalCluster, name: str) -> set[str]:
    """The uids of the running pods of a Job."""
    pods: list[Document] = plane.client.get("/api/v1/namespaces/default/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if pod["metadata"]["name"].startswith(f"{name}-") and pod["status"]["phase"] == "Running"
    }


def states(walk: Walk) -> dict[str, str]:
    """The state of each gang of queuectl by its name, by `queuectl get workloads`; empty while it does not answer."""
    status, printed = walk.shell.type(
        f"{ways.IN_POD} get workloads -o json | jq -r '.[] | \"\\(.name) \\(.state)\"'"
    )
    return dict(line.split() for line in printed.splitlines() if line) if status == 0 else {}


def admitted(plane: LocalCluster, name: str) -> bool:
    """Whether Kueue has admitted the Workload of a Job, and runs."""
    listed = plane.client.get("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads")["items"]
    conditions = [
        condition
        for workload in listed
        if workload["metadata"]["ownerReferences"][0]["name"] == name
        for condition in workload.get("status", {}).get("conditions", ())
    ]
    return any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions)
