"""The ways of a platform engineer, as commands of the pages in their order. Each way ends with the effect that the engineer wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tests.adoption import kueue
from tests.adoption.walk import Walk
from tests.system.transcript import Page

IN_POD: Final = "kubectl -n queuectl-system exec deployment/queuectl -- queuectl"
IN_POD_WITH_INPUT: Final = IN_POD.replace("exec ", "exec -i ")
_ROLLOUT: Final = "kubectl -n queuectl-system rollout status"


class Programs(Protocol):
    """Where the programs run: in the pods of the manifests, or outside of a cluster whose pods run no program."""

    def start_queuectl(self, *settings: str) -> None:
        """Type what is needed after Helm, until queuectl is ready. ``settings``: of `queuectl serve`, as NAME=VALUE."""

    def stop_queuectl(self) -> None:
        """Type what is needed before Helm removes it or changes its mode."""

    def start_kueue(self) -> None:
        """Type what Kueue's page on its installation has."""

    def stop_kueue(self) -> None:
        """Type what is needed after its Deployment has no replica."""


def first_gang(walk: Walk, programs: Programs, effect: str, reached: Callable[[], bool]) -> None:
    """Install queuectl in an empty cluster, and run a gang."""
    page = Page("install.md", walk.shell)
    walk.begin("empty cluster to the first gang of queuectl")
    walk.read(page, "helm install")
    walk.read(page, _ROLLOUT)
    programs.start_queuectl()
    walk.read(page, "kubectl -n queuectl-system exec")
    walk.read(page, "kubectl create -f docs/examples/first-job.yaml")
    walk.wait(effect, reached)
    assert "default/first" in walk.read(page, f"{IN_POD} explain")


def first_job_of_kueue(
    walk: Walk, programs: Programs, effect: str, reached: Callable[[], bool]
) -> None:
    """Install Kueue in an empty cluster, and run a job."""
    walk.begin("empty cluster to the first job of Kueue")
    programs.start_kueue()
    walk.type(kueue.QUOTAS, "kubectl apply -f queues.yaml")
    walk.type(kueue.JOB, "kubectl create -f first.yaml")
    walk.wait(effect, reached)


def shadow(walk: Walk, programs: Programs) -> None:
    """Install queuectl in shadow mode next to Kueue, and read the first report."""
    page = Page("shadow.md", walk.shell)
    walk.begin("a Kueue cluster to shadow mode")
    walk.read(page, "helm install")
    walk.read(page, _ROLLOUT)
    programs.start_queuectl("QUEUECTL_SHADOW=true")
    walk.read(page, f"{IN_POD} report shadow")


def live(walk: Walk, programs: Programs, adopted: Callable[[], bool]) -> None:
    """Stop Kueue, and let queuectl take over."""
    page = Page("coming-from-kueue.md", walk.shell)
    walk.begin("shadow mode to live")
    walk.read(page, "kubectl get clusterqueues,")
    walk.read(page, "kubectl -n kueue-system get configmap")
    walk.read(page, "kubectl -n kueue-system scale")
    programs.stop_kueue()
    walk.read(page, "kubectl delete mutating")
    programs.stop_queuectl()
    walk.read(page, "helm upgrade")
    walk.read(page, _ROLLOUT)
    programs.start_queuectl("QUEUECTL_CONFIGURATION_OWNER=kueue")
    walk.wait("the running gang is adopted", adopted)
    walk.read(page, f"{IN_POD} get workloads")


def back(walk: Walk, programs: Programs, admitted: Callable[[], bool]) -> None:
    """Remove queuectl, and let Kueue take over."""
    page = Page("back-to-kueue.md", walk.shell)
    walk.begin("live to Kueue again")
    walk.read(page, f"{IN_POD} get clusterqueues")
    walk.read(page, f"{IN_POD} get workloads --state Starting")
    walk.read(page, f"{IN_POD} get workloads --state Evicting")
    walk.read(page, f"{IN_POD} config export")
    programs.stop_queuectl()
    walk.read(page, "helm uninstall")
    walk.read(page, "kubectl get localqueues")
    walk.read(page, "queuectl kueue hand-over --dry-run")
    walk.read(page, "queuectl kueue hand-over")
    programs.start_kueue()
    walk.wait("the running gang is admitted", admitted)
    walk.read(page, "kubectl get workloads.kueue")
