"""Flux's kustomize-controller on the CRDs: what it applies, drift, pruning, health, and a field of another manager."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from queuectl.localcluster import build
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.versions import KUSTOMIZE_CONTROLLER
from tests.operations.custom import CustomCluster, custom_cluster
from tests.support.definitions import definition
from tests.unit.test_config_fields import Fields, document, groups, merged, nested

pytestmark = pytest.mark.operations

SOURCES = "source.toolkit.fluxcd.io"
KINDS = (("GitRepository", "v1"), ("OCIRepository", "v1"), ("Bucket", "v1"), ("ExternalArtifact", "v1"))  # fmt: skip
NAMESPACE = "flux-system"
SECONDS = 120.0


class Flux:
    """A kustomize-controller, and the repository that it follows."""

    def __init__(self, api: CustomCluster, folder: Path, address: str) -> None:
        self.api, self._folder, self._address = api, folder, address

    def push(self, *documents: Fields) -> str:
        """A new commit with these objects. Returns its revision."""
        text = yaml.safe_dump_all(documents).encode()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            entry = tarfile.TarInfo("queues.yaml")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        revision = f"main@sha1:{digest[:40]}"
        (self._folder / f"{digest}.tar.gz").write_bytes(packed.getvalue())
        status = {
            "observedGeneration": 1,
            "artifact": {
                "path": f"{digest}.tar.gz",
                "url": f"{self._address}/{digest}.tar.gz",
                "digest": f"sha256:{digest}",
                "revision": revision,
                "lastUpdateTime": "2026-11-27T12:00:00Z",
                "size": len(packed.getvalue()),
            },
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Succeeded",
                    "message": "",
                    "lastTransitionTime": "2026-11-27T12:00:00Z",
                }
            ],
        }
        patch = yaml.safe_dump({"status": status})
        self._kubectl(
            "patch", "gitrepository", "queues", "--subresource=status", "--type=merge", "-p", patch
        )
        return revision

    def reconcile(self) -> None:
        """Ask for a reconciliation now."""
        self._kubectl(
            "annotate",
            "kustomization",
            "queues",
            "--overwrite",
            f"reconcile.fluxcd.io/requestedAt={os.urandom(4).hex()}",
        )

    def until_applied(self, revision: str) -> None:
        def applied() -> bool:
            status = self.status
            return status.get("lastAppliedRevision") == revision and self.ready == "True"

        wait_until(applied, f"revision {revision}", SECONDS)

    @property
    def status(self) -> Any:
        found = self._kubectl("get", "kustomization", "queues", "-o", "yaml")
        return yaml.safe_load(found).get("status", {})

    @property
    def ready(self) -> str:
        conditions = self.status.get("conditions", ())
        return next((one["status"] for one in conditions if one["type"] == "Ready"), "")

    def _kubectl(self, *arguments: str) -> str:
        return self.api.done("--namespace", NAMESPACE, *arguments)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A web server for the files of a folder."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flux]:
    folder = tmp_path_factory.mktemp("artifacts")
    program = build.program(KUSTOMIZE_CONTROLLER)
    with custom_cluster() as api, served(folder) as address:
        client = api.cluster.client
        api.done("create", "namespace", NAMESPACE)
        for kind, version in KINDS:
            plural = (
                f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"
            )
            client.apply(definition(SOURCES, kind, plural, version, scope="Namespaced"))
        client.apply(
            definition(
                "kustomize.toolkit.fluxcd.io",
                "Kustomization",
                "kustomizations",
                "v1",
                scope="Namespaced",
            )
        )
        api.done("wait", "--for=condition=Established", "crd", "--all")
        source = {"apiVersion": f"{SOURCES}/v1", "kind": "GitRepository"}
        kustomization = {
            "interval": "1h",
            "retryInterval": "2s",
            "path": "./",
            "prune": True,
            "wait": True,
            "timeout": "10s",
            "sourceRef": {"kind": "GitRepository", "name": "queues"},
        }
        home = {"metadata": {"name": "queues", "namespace": NAMESPACE}}
        api.apply(
            {**source, **home, "spec": {"interval": "1h", "url": "https://example.org/queues"}},
            {
                "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
                "kind": "Kustomization",
                **home,
                "spec": kustomization,
            },
            manager="admin",
        )
        command: list[str | Path] = [
            program,
            "--metrics-addr=0",
            "--health-addr=127.0.0.1:0",
            "--watch-all-namespaces",
        ]
        environment = os.environ | {
            "KUBECONFIG": str(api.cluster.kubeconfig),
            "RUNTIME_NAMESPACE": NAMESPACE,
            "TMPDIR": str(folder),
        }
        log = folder / "log"
        with (
            log.open("w") as written,
            subprocess.Popen(command, env=environment, stdout=written, stderr=written) as process,
        ):
            try:
                yield Flux(api, folder, address)
            finally:
                process.terminate()


def queue(name: str, **spec: Any) -> Fields:
    return merged(document("ClusterQueue", {"spec": spec}), nested("metadata.name", name))


def set_ready(flux: Flux, name: str, status: str, generation: int) -> None:
    """The status as the controller writes it."""
    condition = {
        "type": "Ready",
        "status": status,
        "reason": "Used",
        "message": "",
        "lastTransitionTime": "2026-11-27T12:00:00Z",
    }
    patch = yaml.safe_dump(
        {"status": {"observedGeneration": generation, "conditions": [condition]}}
    )
    flux.api.done("patch", "qcq", name, "--subresource=status", "--type=merge", "-p", patch)


def test_health_drift_and_pruning(flux: Flux) -> None:
    first = flux.push(queue("a", cohortName="all", resourceGroups=groups()), queue("b"))
    wait_until(
        lambda: flux.api.kubectl("get", "qcq", "a", "b").returncode == 0, "the queues", SECONDS
    )
    for name in ("a", "b"):
        set_ready(flux, name, "True", 1)
    flux.until_applied(first)

    # Another manager's field stays, a change of a field of Flux does not.
    flux.api.apply(queue("a", policy={"maxPriority": 5}), manager="operator")
    flux.api.done("patch", "qcq", "a", "--type=merge", "-p", '{"spec": {"cohortName": "other"}}')
    flux.reconcile()
    wait_until(
        lambda: flux.api.read("ClusterQueue", "a")["spec"]["cohortName"] == "all",
        "the end of drift",
        SECONDS,
    )
    assert flux.api.read("ClusterQueue", "a")["spec"]["policy"] == {"maxPriority": 5}

    # The status of the controller is the health: an object with a stale generation, or not ready, is not healthy.
    generation = flux.api.read("ClusterQueue", "a")["metadata"]["generation"]
    wait_until(lambda: flux.ready in ("False", "Unknown"), "the stale generation", SECONDS)
    set_ready(flux, "a", "True", generation)
    flux.until_applied(first)

    second = flux.push(queue("a", cohortName="all", resourceGroups=groups()))
    wait_until(
        lambda: flux.api.kubectl("get", "qcq", "b").returncode == 1, "the pruned queue", SECONDS
    )
    flux.until_applied(second)

    # An object that the API server refuses is named, and changes nothing.
    flux.push(queue("a", cohortName="a b"))
    wait_until(
        lambda: "spec.cohortName" in str(flux.status.get("conditions")), "the refusal", SECONDS
    )
    assert flux.api.read("ClusterQueue", "a")["spec"]["cohortName"] == "all"
