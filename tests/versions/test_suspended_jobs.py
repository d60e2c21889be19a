"""Which fields of a suspended Job can change after its first start: the difference that ``queuectl/cluster/server.py`` names."""

from __future__ import annotations

from typing import Any, Final

import pytest

from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client, wait_until
from tests.support.jobs import batch_job
from tests.system.installation import Installation
from tests.versions.webhook import server_of

pytestmark = pytest.mark.system

TERM: Final = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "labels": {"metadata": {"labels": {"a": "b"}}},
    "annotations": {"metadata": {"annotations": {"a": "b"}}},
    "nodeSelector": {"spec": {"nodeSelector": {"a": "b"}}},
    "tolerations": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
    "schedulingGates": {"spec": {"schedulingGates": [{"name": "example.com/a"}]}},
    "nodeAffinity": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
                }
            }
        }
    },
}
"""Fields of the pod template."""


def suspended_after_a_start(client: Client, namespace: str) -> str:
    """The path of a Job that no queue manages. Its pod fits on no node."""
    document = batch_job("started", namespace=namespace, queue=None)
    document["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/none": ""}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    client.create(path, document)
    path += "/started"
    wait_until(lambda: client.get(path)["status"].get("active") == 1, "its pod", 60.0)
    client.patch(path, {"spec": {"suspend": True}})

    def suspended() -> bool:
        status = client.get(path)["status"]
        conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return conditions.get("Suspended") == "True" and not status.get("active")

    wait_until(suspended, "the Job is suspended", 60.0)
    return path


def refusals(client: Client, path: str) -> dict[str, str]:
    """Change each field. The fields that the API server refuses to change, and the reasons."""
    found = {}
    for name, template in FIELDS.items():
        try:
            client.patch(path, {"spec": {"template": template}})
        except ApiServerError as error:
            found[name] = str(error)
    return found


def test_the_template_can_change_at_once_or_without_a_start_time(
    installation: Installation,
) -> None:
    client = installation.cluster.client
    mutable = server_of(installation.cluster).keeps_templates_mutable
    with installation.cluster.namespace("suspended") as namespace:
        path = suspended_after_a_start(client, namespace)
        assert ("startTime" in client.get(path)["status"]) is not mutable
        refused = refusals(client, path)
        assert set(refused) == (set() if mutable else set(FIELDS))
        assert all("field is immutable" in why for why in refused.values())

        client.patch(f"{path}/status", {"status": {"startTime": None}})
        assert refusals(client, path) == {}
