"""Shell commands to try on a kept demo. They work as printed, in a shell on this machine."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from queuectl.demo.controller import ControllerProcess
from queuectl.demo.scenario import BATCH, QUEUE, PodSetManifest, job
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.nodes import RACK
from queuectl.localcluster.prometheus import Prometheus

# Prometheus uses the label `pod` for the exporter's own pod; the label of the measured pod becomes `exported_pod`.
_DONE_BY_GPUS: Final = (
    "avg by (gang) (label_replace("
    'avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{exported_pod=~"(busy|idle)-64-.*"}[1h]), '
    '"gang", "$1", "exported_pod", "(.*-64)-.*"))'
)


def lines(
    cluster: LocalCluster, prometheus: Prometheus, controller: ControllerProcess
) -> list[tuple[str, list[str]]]:
    """Groups of shell commands, each with a heading. The first group sets up the shell."""
    gang = _example(controller)
    return [
        ("First, in your shell", _environment(cluster, controller)),
        (
            "queuectl",
            [
                "queuectl get workloads",
                "queuectl explain team-b/too-wide-80",
                "queuectl describe workload idle-64 -n team-b",
                "queuectl get clusterqueues",
                "queuectl report usage --by workload",
            ],
        ),
        (
            "Your own gang: 4 pods of 8 GPUs in one rack, until you delete it",
            [
                f"kubectl create -f {gang}",
                "queuectl explain team-a/mine",
                "queuectl get workload mine -n team-a -o wide",
                "kubectl get pods -n team-a -l batch.kubernetes.io/job-name=mine -o wide",
                f"kubectl delete -f {gang}",
            ],
        ),
        (
            "The cluster",
            [
                f"kubectl get nodes -L {RACK}",
                "kubectl get jobs,pytorchjobs -A -L queuectl.dev/queue-name",
                "kubectl get events -n team-b --field-selector involvedObject.name=too-wide-80",
            ],
        ),
        (
            "REST and metrics",
            [
                'curl -s "$QUEUECTL_SERVER/api/v1/workloads?state=Pending" | python3 -m json.tool',
                "curl -s $QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/idle-64/history | python3 -m json.tool",
                f"curl -s {controller.metrics}/metrics | grep ^queuectl_",
                f"tail {shlex.quote(str(controller.log))}",
            ],
        ),
        (
            "Prometheus: GPU utilization of busy-64 and idle-64, metrics of queuectl, alerts",
            [
                _query(prometheus, _DONE_BY_GPUS),
                _query(prometheus, "sum by (cluster_queue, status) (queuectl_workloads)"),
                f"curl -s {prometheus.url}/api/v1/alerts | python3 -m json.tool",
            ],
        ),
        ("At the end", ["queuectl demo --down"]),
    ]


def show(
    console: Console, cluster: LocalCluster, prometheus: Prometheus, controller: ControllerProcess
) -> None:
    """Print the commands."""
    console.print("The demo keeps running. Commands to try:", highlight=False)
    for heading, group in lines(cluster, prometheus, controller):
        console.print(f"\n[bold]{heading}[/]", highlight=False)
        for line in group:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _environment(cluster: LocalCluster, controller: ControllerProcess) -> list[str]:
    folders = [Path(sys.executable).parent] if shutil.which("queuectl") is None else []
    folders += [cluster.kubectl.parent] if cluster.kubectl is not None else []
    path = ":".join(shlex.quote(str(folder)) for folder in folders)
    return [
        *([f"export PATH={path}:$PATH"] if path else []),
        f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}",
        f"export QUEUECTL_SERVER={controller.api}",
    ]


def _query(prometheus: Prometheus, expression: str) -> str:
    """A command that queries Prometheus."""
    asked = shlex.quote(f"query={expression}")
    return f"curl -s {prometheus.url}/api/v1/query --data-urlencode {asked} | python3 -m json.tool"


def _example(controller: ControllerProcess) -> str:
    """The path of a file with a Job that runs until it is deleted."""
    path = controller.home / "mine.yaml"
    document = job(
        "mine",
        "team-a",
        QUEUE,
        PodSetManifest(4, 8, "48", "512Gi", required=RACK),
        priority_class=BATCH,
    )
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return shlex.quote(str(path))
