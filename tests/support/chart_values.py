"""Values of the chart for its tests, and ways into its documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from queuectl.cluster.apply import Document
from tests.support.chart import documents

OLDER = ("1.33", "1.34", "1.35")

IMAGE = {"image": {"repository": "registry.example.com/queuectl"}}

RUNBOOK = "https://docs.example.com/how-to/runbook/"

ALL: Mapping[str, Any] = {
    **IMAGE,
    "imagePullSecrets": [{"name": "registry"}],
    "database": {"secretName": "queuectl-database", "sslMode": "verify-full", "caSecretName": "database-ca", "passwordFiles": True, "pgbouncer": "transaction"},
    "settings": {"QUEUECTL_IN_FLIGHT": "16"},
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": "text"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraVolumes": [{"name": "oidc", "secret": {"secretName": "oidc"}}],
    "extraVolumeMounts": [{"name": "oidc", "mountPath": "/etc/queuectl/oidc"}],
    "networkPolicy": {"apiFrom": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "runbookUrl": RUNBOOK, "recordingRules": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "annotations": {"folder": "queuectl"}},
    "kueueKeys": {"enabled": True},
    "queuedGpus": {"enabled": True},
    "forceDelete": {"enabled": True},
    "migReconfiguration": {"enabled": True},
    "podLogs": {"enabled": True},
    "namespace": {"create": True},
}  # fmt: skip


def of_kind(found: list[Any], kind: str) -> list[Any]:
    return [one for one in found if one["kind"] == kind]


def pod(values: Mapping[str, Any]) -> Any:
    [deployment] = of_kind(documents(values), "Deployment")
    return deployment["spec"]["template"]["spec"]


def by_name(found: Iterable[Document]) -> dict[tuple[str, str], Document]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}
