"""The way of a platform engineer on real nodes, as the pages have it: queuectl and Kueue in an empty cluster, and from Kueue to shadow mode,
to live, and back.

    make image && .venv/bin/python -m tests.adoption.kueue && make e2e-real TESTS=tests/adoption

It prints the commands with their seconds, and writes them to `files of `build/adoption``. Images are on the nodes before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from tests.adoption import kueue, ways
from tests.adoption.observed import admitted, problems, running, save, states, succeeded
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


@dataclass(frozen=True)
class InPods:
    """Both programs run in the pods of their manifests. Nothing else is typed to start or to stop them."""

    walk: Walk

    def start_queuectl(self, *settings: str) -> None:
        """Helm has started it."""

    def stop_queuectl(self) -> None:
        """Helm stops it."""

    def start_kueue(self) -> None:
        self.walk.type(kueue.INSTALLATION, "kubectl apply --server-side -f manifests.yaml")
        ready = "kubectl wait deploy/kueue-controller-manager -n kueue-system"
        self.walk.type(kueue.INSTALLATION, f"{ready} --for=condition=available --timeout=5m")

    def stop_kueue(self) -> None:
        """Its Deployment has no replica."""


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
        ways.first_gang(
            walk, InPods(walk), "it has ended", lambda: succeeded(plane.client, "first")
        )
        save(walk, "nodes-queuectl.md")


def test_kueue_to_shadow_mode_to_live_and_back(tmp_path: Path) -> None:
    with walking(tmp_path, with_kueue=True) as (plane, walk):
        kubectl = plane.kubectl
        assert kubectl is not None
        folder, programs = walk.shell.folder, InPods(walk)
        folder.joinpath("manifests.yaml").write_text(kueue.manifests(kubectl))
        folder.joinpath("queues.yaml").write_text(kueue.QUEUES)
        for name, pods, seconds in (("first", 2, SHORT), ("runs", 2, LONG), ("waits", 4, SHORT)):
            document = kueue.job(name, pods, images.BASE.name, seconds)
            folder.joinpath(f"{name}.yaml").write_text(kueue.written(document))
        try:
            ways.first_job_of_kueue(
                walk, programs, "it has ended", lambda: succeeded(plane.client, "first")
            )
            for name in ("runs", "waits"):
                walk.shell.type(f"kubectl create -f {name}.yaml")
            wait_until(lambda: len(running(plane.client, "runs")) == 2, "the pods of runs", SECONDS)
            before = running(plane.client, "runs")
            ways.shadow(walk, programs)
            assert "waits" in folder.joinpath("shadow.html").read_text()
            ways.live(walk, programs, lambda: "Running" in states(walk).get("runs", ""))
            assert running(plane.client, "runs") == before
            assert states(walk)["waits"] == "Pending"
            ways.back(walk, programs, lambda: admitted(plane.client, "runs"))
            assert running(plane.client, "runs") == before
            assert not admitted(plane.client, "waits")
        finally:
            save(walk, "nodes-kueue.md")
            print(problems(walk))
