"""A Kueue that is built from the Go module proxy, for tests next to a real one. The first build takes about five minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from queuectl.localcluster import build
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import Patch, Unit

_BASES: Final = "config/components/crd/bases"
_KINDS: Final = (
    "admissionchecks",
    "clusterqueues",
    "cohorts",
    "localqueues",
    "multikueueclusters",
    "multikueueconfigs",
    "provisioningrequestconfigs",
    "resourceflavors",
    "topologies",
    "workloadpriorityclasses",
    "workloads",
)
KUEUE: Final = Unit(
    name="kueue",
    module="sigs.k8s.io/kueue",
    version="v0.17.0",
    programs={"kueue": "cmd/kueue"},
    minutes=5.0,
    # The folder of the certificate of its metrics is one for the whole machine. Its webhooks have theirs in its own folder.
    patches=(
        Patch(
            'metricsCertPath := "/etc/kueue/metrics/certs"',
            'metricsCertPath := os.Getenv("TMPDIR")',
        ),
    ),
    files={
        **{f"crds/{kind}.yaml": f"{_BASES}/kueue.x-k8s.io_{kind}.yaml" for kind in _KINDS},
        **{
            f"rbac/{name}.yaml": f"config/components/rbac/{name}.yaml"
            for name in ("role", "manager_secrets_role")
        },
        "webhook/manifests.yaml": "config/components/webhook/manifests.yaml",
    },
)


def kueue_folder() -> Path:
    """The folder of its program and its manifests, as :meth:`tests.bench.kueue.peer.Kueue.start` takes it."""
    build.ensure(LineProgress(), units=(KUEUE,))
    return build.folder(KUEUE)


def definitions() -> list[dict[str, Any]]:
    """Its CustomResourceDefinitions, without its conversion webhook."""
    folder = kueue_folder() / "files" / "crds"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [yaml.load(path.read_text(), loader) for path in sorted(folder.glob("*.yaml"))]
