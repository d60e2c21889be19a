"""The CustomResourceDefinitions of the Prometheus Operator, from its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queuectl.localcluster import build
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.versions import Unit

KINDS: Final = ("servicemonitors", "prometheusrules")
PROMETHEUS_OPERATOR: Final = Unit(
    name="prometheus-operator",
    module="github.com/prometheus-operator/prometheus-operator",
    version="v0.85.0",
    programs={},
    minutes=0.1,
    files={
        f"crds/{kind}.yaml": f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        for kind in KINDS
    },
)


def definitions() -> list[Path]:
    """One file for each kind that the chart can create. The first call downloads them."""
    return list(build.ensure(NoProgress(), units=[PROMETHEUS_OPERATOR]).files.values())
