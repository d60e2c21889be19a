"""The tutorial of a training that is preempted and resumed, typed on real nodes; a Prometheus records the metrics of queuectl."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from queuectl.localcluster.client import wait_until
from queuectl.localcluster.prometheus import Prometheus
from tests.real import images, loss_curves, sandbox, training
from tests.real.cluster import RealInstallation
from tests.system.demo_cluster import admin_shell
from tests.system.transcript import Page

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

_IMAGE: Final = {"IMAGE": images.PYTORCH.name}
_RANK: Final = re.compile(r"rank (\d) of (\d) on (\S+), master (\S+)")
_INIT_CONTAINER: Final = f"""
- name: init-pytorch
  image: {images.BASE.name}
  command: [sh, -c, 'until getent hosts {{{{.MasterAddr}}}}; do sleep 1; done']
"""
"""The training operator lets workers wait until the name of the master resolves."""


@pytest.fixture(scope="module")
def volume(installation: RealInstallation) -> Path:
    """The nodes have the image, and the claim of the tutorial gets a folder that all nodes share. Returns the folder."""
    with ThreadPoolExecutor() as threads:
        list(
            threads.map(
                lambda node: node.import_archive(images.PYTORCH.archive),
                installation.nodes.values(),
            )
        )
    cluster = installation.cluster
    (cluster.kubeconfig.parents[1] / "init-container.yaml").write_text(_INIT_CONTAINER)
    run = sandbox.home()
    assert run is not None
    folder = run / "checkpoints"
    folder.mkdir()
    cluster.client.apply(_persistent_volume(folder))
    return folder


def _persistent_volume(folder: Path) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "checkpoints"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": "vision", "name": "checkpoints"},
            "hostPath": {"path": str(folder)},
        },
    }


@pytest.fixture(scope="module")
def prometheus(installation: RealInstallation) -> Iterator[Prometheus]:
    """A Prometheus that scrapes queuectl each second."""
    target = installation.controller.metrics.removeprefix("http://")
    job = {"job_name": "queuectl", "static_configs": [{"targets": [target]}]}
    with Prometheus.start([job], scrape_seconds=1.0) as started:
        yield started


@contextmanager
def tutorial(installation: RealInstallation) -> Iterator[Page]:
    """The page of the tutorial. Afterwards each of its commands was typed."""
    with admin_shell(installation) as shell:
        page = Page("resume-training.md", shell)
        yield page
        page.end()


class Follower:
    """Waits for what the reader of the page sees."""

    def __init__(self, installation: RealInstallation, folder: Path) -> None:
        self._installation, self._folder = installation, folder

    def until_running(self, name: str) -> None:
        """Wait until all pods of a gang are ready."""
        self._until(lambda: self._state(name) == "Running", f"{name} Running")

    def until_step(self, name: str, number: int) -> None:
        """Wait until a training has done a step."""
        folder = self._folder / name
        self._until(lambda: training.last_step(folder) >= number, f"{name}: step {number}")

    def _state(self, name: str) -> str:
        found = self._installation.rest.workloads().get(f"vision/{name}")
        return str(found["state"]) if found else ""

    def _until(self, done: Callable[[], bool], what: str) -> None:
        wait_until(done, what, training.SECONDS)

    def check_ranks(self, printed: str, master: str) -> None:
        """Each rank has the address of the master, the number of ranks, and a node in the order of the topology."""
        ranks = sorted(_RANK.findall(printed))
        assert [(rank, count, seen) for rank, count, _, seen in ranks] == [
            (str(rank), "4", master) for rank in range(4)
        ]
        nodes = [node for _, _, node, _ in ranks]
        assert nodes == sorted(nodes)
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3], "two ranks on each node"
        assert len({node.rpartition("-")[0] for node in nodes}) == 1, "one rack"

    def check_resumed(self, name: str, printed: str) -> float:
        """The training did each step once, and lost none. Returns its final loss."""
        assert "lost steps: 0" in printed
        done = [step.number for step in training.steps(self._folder / name)]
        assert done == list(range(1, done[-1] + 1))
        return training.final_loss(printed)


def test_a_preempted_training_resumes_to_the_loss_of_an_undisturbed_one(
    installation: RealInstallation, volume: Path, prometheus: Prometheus
) -> None:
    follower, finals = Follower(installation, volume), {}
    with tutorial(installation) as page:
        page.type("kubectl create -f docs/examples/training/namespace.yaml")
        page.type("queuectl apply")
        page.type("kubectl create configmap")
        page.type("sed", instead=_IMAGE)
        page.type("kubectl create -f pretrain.yaml")
        follower.until_running("pretrain")
        page.type("queuectl explain")
        follower.until_step("pretrain", 120)
        follower.check_ranks(page.type("kubectl logs"), "pretrain-0.pretrain:29500")
        page.type("sed", instead=_IMAGE)
        page.type("kubectl create -f urgent.yaml")
        page.type("kubectl wait -n vision job/urgent")
        page.type("queuectl history")
        page.type("kubectl wait -n vision job/pretrain")
        finals["pretrain"] = follower.check_resumed("pretrain", page.type("kubectl logs"))
        page.type("sed")
        page.type("kubectl create -f undisturbed.yaml")
        page.type("kubectl wait -n vision job/undisturbed")
        finals["undisturbed"] = training.final_loss(page.type("kubectl logs"))
        record(volume, finals)
        page.type("sed", instead=_IMAGE)
        page.type("kubectl create -f finetune.yaml")
        follower.until_step("finetune", 120)
        follower.check_ranks(page.type("kubectl logs"), "finetune-master-0:23456")
        page.type("kubectl delete job urgent")
        page.type("kubectl create -f urgent.yaml")
        page.type("kubectl wait -n vision job/urgent")
        page.type("kubectl wait -n vision pytorchjob/finetune")
        finals["finetune"] = follower.check_resumed("finetune", page.type("kubectl logs"))
        check_metrics(prometheus)
        page.type("kubectl delete namespace")
        page.type("queuectl delete")
        page.type("rm")
    print(json.dumps(finals))
    for name in ("pretrain", "finetune"):
        assert finals[name] == pytest.approx(finals["undisturbed"], rel=1e-5), name


def check_metrics(prometheus: Prometheus) -> None:
    """Prometheus has recorded both evictions, and at most seconds of lost work."""
    queue = '{cluster_queue="vision"}'
    for metric in ("queuectl_preempted_workloads_total", "queuectl_evicted_workloads_total"):
        (sample,) = prometheus.query(f"sum({metric}{queue})")
        assert float(sample["value"][1]) == 2, metric
    (lost,) = prometheus.query(f"sum(queuectl_lost_gpu_seconds_total{queue})")
    print(f"lost GPU-seconds as queuectl estimated them at the preemptions: {lost['value'][1]}")
    (scrapes,) = prometheus.query("min_over_time(up[1h])")
    assert float(scrapes["value"][1]) == 1, "each scrape was answered"


def record(volume: Path, finals: dict[str, float]) -> None:
    """Keep the records of the runs for `tests.real.loss_curves`."""
    for name in finals:
        target = loss_curves.RECORD / name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(volume / name / "losses.csv", target)
    (loss_curves.RECORD / "final.json").write_text(json.dumps(finals))
