"""The ways of tests/adoption on a local control plane, with the commands of the pages: its pods run no program, so both controllers run outside.

    make test-operations TESTS=tests/operations/test_adoption.py PYTEST_ARGS=-s

It prints the commands with their seconds, and writes them to `files of `build/adoption``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import pytest

from queuectl.demo.scenario import Document
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import get_plain
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.progress import LineProgress
from tests.adoption import kueue, ways
from tests.adoption.observed import admitted, running, save, states
from tests.adoption.walk import Walk
from tests.bench.kueue.peer import Kueue, jobs_alone
from tests.support.chart import helm_program
from tests.support.real_kueue import kueue_folder
from tests.system.demo_cluster import tools
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(1800)]

NODES: Final = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=2, gpus=2)
GATES: Final = {"VisibilityOnDemand": False}
PROBLEMS: Final = (
    "kubectl get pods,jobs,workloads.kueue.x-k8s.io -A -o wide; tail -n 40 served; "
    "queuectl get workloads; queuectl history default/first; queuectl explain default/waits"
)
INSTEAD: Final = {ways.IN_POD: "queuectl", ways.IN_POD_WITH_INPUT: "queuectl"}


@dataclass
class Outside:
    """Both programs run as processes outside the control plane.

    Attributes:
        home: the folder of the database of queuectl.
        health: the address of its probes.
    """

    cluster: LocalCluster
    walk: Walk
    home: Path
    health: str
    kueue: Kueue | None = None

    def start_queuectl(self, *settings: str) -> None:
        page = Page("operate.md", self.walk.shell)
        self.walk.read(page, 'cp "$KUBECONFIG"')
        for begins in ("set-credentials", "set-context"):
            self.walk.read(page, f"kubectl --kubeconfig sa.yaml config {begins}")
        line = page.take("QUEUECTL_KUBECONFIG=")
        assert "QUEUECTL_DATABASE_URL=postgresql://…" in line
        line = line.replace("QUEUECTL_DATABASE_URL=postgresql://…", " ".join(settings))
        self.walk.type(page.name, f"{line} > served 2>&1 &")
        self.walk.wait("queuectl is ready", self._ready)

    def _ready(self) -> bool:
        try:
            return get_plain(f"http://{self.health}/readyz").is_success
        except httpx2.HTTPError:
            return False

    def stop_queuectl(self) -> None:
        self.walk.type("operate.md", "kill %%; wait %%")

    def start_kueue(self) -> None:
        frameworks = ("batch/job", "pod")
        self.walk.act(
            "start Kueue with its manifests", kueue.INSTALLATION, lambda: self._start(frameworks)
        )

    def _start(self, frameworks: tuple[str, ...]) -> None:
        self.kueue = Kueue.start(self.cluster, kueue_folder(), jobs_alone(GATES, frameworks))
        client, named = self.cluster.client, {"app.kubernetes.io/name": "kueue"}
        for kind in ("mutating", "validating"):
            listed = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            for hooks in client.get(listed)["items"]:
                if not hooks["metadata"]["name"].startswith("queuectl"):
                    path = f"{listed}/{hooks['metadata']['name']}"
                    client.patch(path, {"metadata": {"labels": named}})

    def stop_kueue(self) -> None:
        assert self.kueue is not None
        self.kueue.stop()
        self.kueue = None


@contextmanager
def walking() -> Iterator[Outside]:
    """An empty cluster."""
    with LocalCluster.start(
        ClusterSpec(nodes=(NODES,), fsync=False), progress=LineProgress()
    ) as cluster:
        home = Path(tempfile.mkdtemp(prefix="queuectl-adoption-"))
        home.chmod(0o755)  # the database runs as another user
        api, metrics, health = (f"127.0.0.1:{port}" for port in free_ports(3))
        environment = tools(cluster) | {
            "XDG_STATE_HOME": str(home),
            "QUEUECTL_LISTEN": api,
            "QUEUECTL_METRICS_LISTEN": metrics,
            "QUEUECTL_HEALTH_LISTEN": health,
            "QUEUECTL_SERVER": f"http://{api}",
        }
        path = f"{helm_program().parent}:{environment['PATH']}"
        try:
            with shell(environment | {"PATH": path}) as started:
                outside = Outside(cluster, Walk(started, INSTEAD), home, health)
                try:
                    yield outside
                finally:
                    started.type("kill %%; wait %%")
                    if outside.kueue is not None:
                        outside.kueue.stop()
        finally:
            shutil.rmtree(home, ignore_errors=True)


def stopped_manager() -> list[Document]:
    """The Deployment and the ConfigMap of Kueue's manifests, whose program runs outside."""
    labels = {"control-plane": "controller-manager"}
    container = {"name": "manager", "image": "registry.invalid/kueue:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    space = {"namespace": "kueue-system"}
    configuration = f"apiVersion: config.{kueue.API}\nkind: Configuration\n"
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kueue-controller-manager", **space},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kueue-manager-config", **space},
            "data": {"controller_manager_config.yaml": configuration},
        },
    ]


def test_an_empty_cluster_to_the_first_gang() -> None:
    with walking() as programs:
        walk, client = programs.walk, programs.cluster.client
        ways.first_gang(walk, programs, "its pods run", lambda: len(running(client, "first")) == 2)
        save(walk, "local-queuectl.md")


def test_kueue_to_shadow_mode_to_live_and_back() -> None:
    with walking() as programs:
        walk, client = programs.walk, programs.cluster.client
        folder = walk.shell.folder
        folder.joinpath("queues.yaml").write_text(kueue.QUEUES)
        for name, pods in (("first", 2), ("waits", 4)):
            document = kueue.job(name, pods, "registry.example.com/main:1", 1)
            folder.joinpath(f"{name}.yaml").write_text(kueue.written(document))
        try:
            ways.first_job_of_kueue(
                walk, programs, "its pods run", lambda: len(running(client, "first")) == 2
            )
            client.apply(*stopped_manager())
            walk.shell.type("kubectl create -f waits.yaml")
            before = running(client, "first")
            ways.shadow(walk, programs)
            assert "waits" in folder.joinpath("shadow.html").read_text()
            ways.live(walk, programs, lambda: states(walk).get("first") == "Running")
            assert running(client, "first") == before
            assert states(walk)["waits"] == "Pending"
            ways.back(walk, programs, lambda: admitted(client, "first"))
            assert running(client, "first") == before
            assert not admitted(client, "waits")
        finally:
            save(walk, "local-kueue.md")
            print(walk.shell.type(PROBLEMS)[1])
