"""An API server with the CRDs of ``queuectl.dev/v1``, and kubectl for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import yaml

from queuectl.localcluster import ClusterSpec, LocalCluster, build, versions
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import ApiServerError
from queuectl.localcluster.progress import LineProgress
from queuectl.objects.configuration.config_kinds import BY_KIND, CUSTOM_KINDS
from tests.support.crds import definition

Document = Mapping[str, Any]
SPEC = ClusterSpec(nodes=(), operators=(), controllers=False, fsync=False)


@dataclass(frozen=True)
class CustomCluster:
    """A control plane without controllers."""

    cluster: LocalCluster

    def refusal(self, body: Document) -> str | None:
        """The message with which the API server refuses to create an object, or None. It creates none."""
        kind = BY_KIND[body["kind"]]
        scope = "/namespaces/default" if kind.namespaced else ""
        path = f"/apis/queuectl.dev/v1{scope}/{kind.resource.partition('.')[0]}"
        try:
            self.cluster.client.create(path, body, dryRun="All", fieldValidation="Strict")
        except ApiServerError as error:
            if error.reason == "AlreadyExists":
                return None  # it is compared after the validation
            return str(error)
        return None

    def kubectl(
        self, *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [build.program(versions.kubectl()), *arguments],
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)} | environment,
            input=stdin,
            check=False,
            capture_output=True,
            text=True,
        )

    def done(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        """The output of a kubectl that succeeds."""
        finished = self.kubectl(*arguments, stdin=stdin, **environment)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def apply(self, *documents: Document, manager: str, force: bool = False) -> str:
        """Server-side apply of a field manager."""
        options = ("--server-side", f"--field-manager={manager}", *(("--force-conflicts",) * force))
        return self.done("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(documents))

    def read(self, kind: str, name: str) -> Any:
        """An object as the API server has it."""
        return yaml.safe_load(self.done("get", BY_KIND[kind].resource, name, "-o", "yaml"))


def defined(cluster: LocalCluster) -> None:
    """Create the CRDs, and wait until they are served."""
    cluster.client.apply(*map(definition, CUSTOM_KINDS))
    served = "/apis/queuectl.dev/v1"
    wait_until(
        lambda: (
            sum("/" not in r["name"] for r in cluster.client.get(served)["resources"])
            == len(CUSTOM_KINDS)
        ),
        "the resources of queuectl.dev",
        60.0,
    )


@contextmanager
def bare_cluster(kubernetes: str = versions.KUBERNETES) -> Iterator[LocalCluster]:
    with LocalCluster.start(
        replace(SPEC, kubernetes=kubernetes), progress=LineProgress()
    ) as cluster:
        yield cluster


@contextmanager
def custom_cluster(kubernetes: str = versions.KUBERNETES) -> Iterator[CustomCluster]:
    with bare_cluster(kubernetes) as cluster:
        defined(cluster)
        yield CustomCluster(cluster)
