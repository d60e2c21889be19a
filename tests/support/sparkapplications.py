"""SparkApplications as users write them."""

from __future__ import annotations

from typing import Any, Final

from queuectl.demo.scenario import TERMINATE_SECONDS, Document, PodSetManifest
from queuectl.objects import keys
from tests.support.people import RBAC, account

API: Final = "sparkoperator.k8s.io/v1beta2"
_STOP_SECONDS: Final = "4"
"""In this time, a driver that is deleted deletes its executors."""


def driver_account(name: str, namespace: str) -> list[Document]:
    """A ServiceAccount for drivers, with the rights that they need for the executors."""
    rules = [
        {
            "apiGroups": [""],
            "resources": ["pods", "configmaps", "persistentvolumeclaims", "services"],
            "verbs": ["*"],
        }
    ]
    metadata = {"name": name, "namespace": namespace}
    api = {"apiVersion": f"{RBAC}/v1", "metadata": metadata}
    subject = {"kind": "ServiceAccount", **metadata}
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    return [
        account(namespace, name),
        {**api, "kind": "Role", "rules": rules},
        {**api, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
    ]


def sparkapplication(
    name: str,
    namespace: str,
    executors: PodSetManifest,
    *,
    driver: PodSetManifest | None = None,
    queue: str | None = "main",
    priority_class: str | None = None,
    **spec: Any,
) -> Document:
    """Of a driver, which is small by default and has an account with the name of the application, and executors. It runs until it is deleted."""
    labels = {keys.QUEUE_LABEL: queue} if queue is not None else {}
    labels |= {keys.PREFIX + keys.PRIORITY_CLASS: priority_class} if priority_class else {}
    one = (driver or PodSetManifest(1)).template("spark-kubernetes-driver", None, restart="Never")
    one["metadata"]["annotations"][TERMINATE_SECONDS] = _STOP_SECONDS
    others = executors.template("spark-kubernetes-executor", None, restart="Never")
    return {
        "apiVersion": API,
        "kind": "SparkApplication",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "type": "Scala",
            "mode": "cluster",
            "sparkVersion": "4.0.1",
            "image": "registry.invalid/spark:4.0.1",
            "mainClass": "com.example.Train",
            "mainApplicationFile": "local:///opt/train.jar",
            "restartPolicy": {
                "type": "OnFailure",
                "onFailureRetries": 3,
                "onFailureRetryInterval": 1,
            },
            "driver": {"memory": "512m", "serviceAccount": name, "template": one},
            "executor": {"instances": executors.count, "memory": "512m", "template": others},
            **spec,
        },
    }
