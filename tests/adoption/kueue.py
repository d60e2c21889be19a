"""Kueue as its own documentation installs it: the manifests of `config/default`, and an image of its program.

A release of Kueue is one file of manifests and a published image. Here, both come from its Go module: the manifests by kustomize, and
the program from the build of :mod:`tests.support.real_kueue`, without its patch.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from queuectl.demo.scenario import Document
from queuectl.localcluster import build
from queuectl.localcluster.progress import LineProgress
from tests.image import blobs
from tests.support.real_kueue import KUEUE

API: Final = "kueue.x-k8s.io/v1beta2"
PROGRAM: Final = replace(KUEUE, patches=())
IMAGE: Final = f"localhost/kueue:{KUEUE.version}"
_RELEASED: Final = "us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue:main"

INSTALLATION: Final = "Kueue: Installation"
QUOTAS: Final = "Kueue: Administer Cluster Quotas"
JOB: Final = "Kueue: Run a Kubernetes Job"
"""Pages of Kueue's documentation."""

QUEUES: Final = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata:
  name: default-flavor
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: cluster-queue
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu]
    flavors:
    - name: default-flavor
      resources:
      - {name: cpu, nominalQuota: 9}
      - {name: memory, nominalQuota: 36Gi}
      - {name: nvidia.com/gpu, nominalQuota: 4}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  namespace: default
  name: user-queue
spec:
  clusterQueue: cluster-queue
"""
"""The example of the page, with a quota for GPUs."""


def is_built() -> bool:
    """Whether the cache has the program and its source. A run on real nodes has no network to build it."""
    return build.cached(PROGRAM).programs["kueue"].exists() and _source().exists()


def ensure() -> Path:
    """Build the program if it is not cached. Returns it."""
    return build.ensure(LineProgress(), units=(PROGRAM,)).programs["kueue"]


def _source() -> Path:
    modules = Path(build.environment(Path())["GOMODCACHE"])
    return modules / f"{KUEUE.module}@{KUEUE.version}" / "config" / "default"


def manifests(kubectl: Path) -> str:
    """The manifests of a release, with the image that the nodes have."""
    rendered = subprocess.run(
        [kubectl, "kustomize", _source()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert rendered.count(_RELEASED) == 1
    return rendered.replace(_RELEASED, IMAGE).replace(
        "imagePullPolicy: Always", "imagePullPolicy: Never"
    )


def archive(folder: Path) -> Path:
    """Write an OCI archive like that of Kueue's Dockerfile: one static program, without a base image."""
    target, layer = folder / "kueue.tar", folder / "layer.tar"
    with tarfile.open(layer, "w") as files:
        files.add(build.cached(PROGRAM).programs["kueue"], "manager")
        for name in ("tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            files.addfile(entry, io.BytesIO())
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": ["/manager"], "User": "65532:65532", "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    with tarfile.open(target, "w") as tar:
        blobs.add_file(tar, "oci-layout", blobs.as_json({"imageLayoutVersion": "1.0.0"}))
        tar.add(layer, f"blobs/sha256/{digest}")
        described = blobs.descriptor(blobs.LAYER, digest, layer.stat().st_size)
        blobs.add_image(tar, IMAGE, config, [described])
    return target


def job(name: str, pods: int, image: str, seconds: int) -> Document:
    """A Job in Kueue's queue, as its page has it."""
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", str(seconds)],
        "resources": {
            "requests": {"cpu": "100m", "nvidia.com/gpu": 1},
            "limits": {"nvidia.com/gpu": 1},
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "user-queue"},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def written(document: Document) -> str:
    """A document as YAML."""
    return yaml.safe_dump(document)


if __name__ == "__main__":
    print(ensure())
