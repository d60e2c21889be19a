"""A cluster like the demo's, for the commands of the documentation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx2
import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import NODES, Document, PodSetManifest
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.operators import (
    JOBSET,
    KUBERAY,
    MPI_OPERATOR,
    TRAINER,
    TRAINING_OPERATOR,
)
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS
from queuectl.objects.kinds import KINDS, path
from tests.system.installation import SECONDS, Installation, installed
from tests.system.transcript import Page, Shell, shell

TEAMS: Final = ("team-a", "team-b")


@dataclass
class DemoCluster:
    """The demo's cluster, and its submitted jobs."""

    installation: Installation

    def submit(self, team: str, name: str, pods: PodSetManifest, **options: Any) -> None:
        self.create(m.job(name, team, "training", pods, **options))

    def create(self, document: Document) -> None:
        client = self.installation.cluster.client
        client.create(client.path_of(document).rsplit("/", 1)[0], document)

    def remove(self, team: str, *names: str) -> None:
        """Delete these jobs, or all, and wait until nothing of them is left."""
        client = self.installation.cluster.client
        collections = (path(kind, team) for kind in KINDS.values())
        for base in filter(client.exists, collections):
            for found in client.get(base)["items"]:
                if not names or found["metadata"]["name"] in names:
                    address = f"{base}/{found['metadata']['name']}"
                    client.delete(address, missing_ok=True, propagationPolicy="Background")
        self.until(lambda: not self._pods(team, names), f"{team}: {names or 'all'} gone")

    def clear(self) -> None:
        """Delete all jobs and the configuration."""
        for team in TEAMS:
            self.remove(team)
        with httpx2.Client(base_url=self.installation.controller.api, trust_env=False) as client:
            for kind in CONFIG_KINDS:
                for found in client.get(kind.collection()).raise_for_status().json()["items"]:
                    meta = found["metadata"]
                    path = kind.path(meta.get("namespace", ""), meta["name"])
                    client.delete(path).raise_for_status()

    def _pods(self, team: str, names: tuple[str, ...]) -> list[str]:
        found = self.installation.cluster.client.get(f"/api/v1/namespaces/{team}/pods")["items"]
        called = [str(pod["metadata"]["name"]) for pod in found]
        return [c for c in called if not names or c.startswith(tuple(f"{n}-" for n in names))]

    def until(self, done: Callable[[], bool], what: str) -> None:
        wait_until(done, what, SECONDS)

    def reason(self, ref: str) -> tuple[str, str]:
        """State and reason code."""
        found = self.installation.rest.workloads().get(ref)
        return (found["state"], found["reason"]["code"]) if found else ("", "")

    def runs(self, *refs: str) -> None:
        """Wait until they do."""
        for ref in refs:
            self.until(partial(self._running, ref), f"{ref} Running")

    def _running(self, ref: str) -> bool:
        return self.reason(ref)[0] == "Running"

    def waits(self, ref: str, code: str) -> None:
        """Wait until it waits for this reason."""
        self.until(lambda: self.reason(ref)[1] == code, f"{ref} {code}")


@contextmanager
def demo_cluster() -> Iterator[DemoCluster]:
    """The demo's nodes and namespaces, without workloads and configuration."""
    quick = {
        "QUEUECTL_UNSCHEDULABLE_SECONDS": "2",
        "QUEUECTL_UTILIZATION__EVALUATION_SECONDS": "1",
        "QUEUECTL_MIG__WAIT_SECONDS": "1",
        "QUEUECTL_DEFRAGMENT_SECONDS": "2",
    }
    operators = (TRAINING_OPERATOR, JOBSET, KUBERAY, MPI_OPERATOR, TRAINER)
    with installed(NODES, quick, operators=operators) as built:
        built.cluster.client.apply(*m.namespaces(TEAMS))
        yield DemoCluster(built)


def tools(cluster: LocalCluster) -> dict[str, str]:
    """The environment that people type in, on this cluster."""
    if any(shutil.which(name) is None for name in ("curl", "jq", "bash")):
        pytest.skip("curl, jq and bash are needed")
    kubectl = cluster.kubectl
    if kubectl is None:
        pytest.skip("kubectl is not built; make controlplane builds it")
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    return {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}


def create_secret(page: Page) -> None:
    """Create the namespace, and the Secret of the database, with the commands of docs/how-to/install.md."""
    page.type("kubectl create namespace")
    page.type("kubectl label namespace")
    page.type("kubectl -n queuectl-system create secret generic")


@contextmanager
def admin_shell(installation: Installation) -> Iterator[Shell]:
    """A shell with all rights in an installation."""
    server = {"QUEUECTL_SERVER": installation.controller.api}
    with shell(tools(installation.cluster) | server) as started:
        yield started


def whole(count: int, **options: Any) -> PodSetManifest:
    """Pods of whole nodes."""
    return PodSetManifest(count, gpus=8, cpu="48", memory="512Gi", **options)


def configuration_with(**fields: Any) -> Document:
    """The Configuration."""
    metadata = {"name": "default"}
    return {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": metadata} | fields


def wait_for_event(demo_cluster: DemoCluster, page: Page, team: str, name: str, word: str) -> None:
    """Wait for an Event with this word: pending reasons are published after a delay."""
    line = f"kubectl get events -n {team} --field-selector involvedObject.name={name}"
    demo_cluster.until(lambda: word in page.shell.type(line)[1], f"{name}: an Event {word}")
