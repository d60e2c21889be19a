"""Findings on the aggregated API that serves workloads to kubectl: it affects the whole cluster while it does not answer."""

from __future__ import annotations

from typing import Final

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.reads import Document
from queuectl.cluster.client import Api, document_in
from queuectl.domain.errors import ObjectGone

_NAME: Final = "v1.visibility.queuectl.dev"
_PATH: Final = f"/apis/apiregistration.k8s.io/v1/apiservices/{_NAME}"
_FIX: Final = f"start a replica, or kubectl delete apiservice {_NAME}: docs/how-to/kubectl.md#while-no-replica-answers"


async def examine(api: Api) -> list[Finding]:
    """Findings on the APIService; none if it does not exist. Raises ClusterError."""
    try:
        body = await api.request("GET", _PATH)
    except ObjectGone:
        return []
    return [judged_service(document_in(_PATH, body, "metadata"))]


def judged_service(document: Document) -> Finding:
    """The finding on an APIService."""
    status = document.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") != "Available":
            continue
        if condition.get("status") == "True":
            return Finding("visibility", Level.OK, "the aggregated API for kubectl answers")
        text = str(condition.get("message") or condition.get("reason") or "no reason given")
        message = f"the aggregated API for kubectl does not answer, so no namespace of the cluster can be deleted: {text[:200]}"
        return Finding("visibility", Level.PROBLEM, message, _FIX)
    message = "the API server has not tried the aggregated API for kubectl yet"
    return Finding("visibility", Level.UNKNOWN, message, "run this command again in a minute")
