"""The ways of a platform engineer, as commands of the pages in their order. Each part ends with the effect that the engineer wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.adoption import kueue
from tests.adoption.walk import Walk
from tests.system.transcript import Page

IN_POD: Final = "kubectl -n queuectl-system exec deployment/queuectl -- queuectl"
_ROLLOUT: Final = "kubectl -n queuectl-system rollout status"


def first_gang(walk: Walk, ended: Callable[[], bool]) -> None:
    """Install queuectl in an empty cluster, and run a gang."""
    page = Page("install.md", walk.shell)
    walk.begin("empty cluster to the first gang")
    walk.read(page, "helm install")
    walk.read(page, _ROLLOUT)
    walk.read(page, "kubectl -n queuectl-system exec")
    walk.read(page, "kubectl create -f docs/examples/first-job.yaml")
    walk.wait("the gang has ended", ended)
    assert "default/first" in walk.read(page, f"{IN_POD} explain")


def first_job_of_kueue(walk: Walk, ended: Callable[[], bool]) -> None:
    """Install Kueue in an empty cluster, and run a job."""
    walk.begin("empty cluster to the first job of Kueue")
    walk.type(kueue.INSTALLATION, "kubectl apply --server-side -f manifests.yaml")
    ready = "kubectl wait deploy/kueue-controller-manager -n kueue-system --for=condition=available --timeout=5m"
    walk.type(kueue.INSTALLATION, ready)
    walk.type(kueue.QUOTAS, "kubectl apply -f queues.yaml")
    walk.type(kueue.JOB, "kubectl create -f first.yaml")
    walk.wait("the job has ended", ended)


def shadow(walk: Walk) -> None:
    """Install queuectl in shadow mode beside Kueue, and read the first report."""
    page = Page("shadow.md", walk.shell)
    walk.begin("a Kueue cluster to shadow mode")
    walk.read(page, "helm install")
    walk.read(page, _ROLLOUT)
    walk.read(page, f"{IN_POD} report shadow")


def live(walk: Walk, adopted: Callable[[], bool]) -> None:
    """Stop Kueue, and let queuectl take over."""
    page = Page("coming-from-kueue.md", walk.shell)
    walk.begin("shadow mode to live")
    walk.read(page, "kubectl get clusterqueues,")
    walk.read(page, "kubectl -n kueue-system get configmap")
    walk.read(page, "kubectl -n kueue-system scale")
    walk.read(page, "kubectl delete mutating")
    walk.read(page, "helm upgrade")
    walk.read(page, _ROLLOUT)
    walk.wait("the running gang is adopted", adopted)
    walk.read(page, f"{IN_POD} get workloads")


def back(walk: Walk, admitted: Callable[[], bool]) -> None:
    """Remove queuectl, and let Kueue take over."""
    page = Page("back-to-kueue.md", walk.shell)
    walk.begin("live to Kueue again")
    walk.read(page, f"{IN_POD} get clusterqueues")
    walk.read(page, f"{IN_POD} get workloads --state Starting")
    walk.read(page, f"{IN_POD} get workloads --state Evicting")
    walk.read(page, f"{IN_POD} config export")
    walk.read(page, "helm uninstall")
    walk.read(page, "kubectl get localqueues")
    walk.read(page, "queuectl kueue hand-over --dry-run")
    walk.read(page, "queuectl kueue hand-over")
    walk.type(kueue.INSTALLATION, "kubectl apply --server-side -f manifests.yaml")
    ready = "kubectl wait deploy/kueue-controller-manager -n kueue-system --for=condition=available --timeout=5m"
    walk.type(kueue.INSTALLATION, ready)
    walk.wait("the running gang is admitted", admitted)
    walk.read(page, "kubectl get workloads.kueue")
