"""The MutatingWebhookConfiguration that has the effect of MutatingAdmissionPolicies and their bindings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Document = Mapping[str, Any]

POLICY: Final = "MutatingAdmissionPolicy"
BINDING: Final = "MutatingAdmissionPolicyBinding"
CONFIGURATION: Final = "queuectl"
NAME: Final = "queuectl-webhook"
"""Of the Service, the Secret and the ServiceAccount of the webhook."""
PATH: Final = "/mutate/"
"""The path of a policy is this and its name."""
SECONDS: Final = 5
"""The API server waits so long for an answer, and refuses the job without one."""


def service(namespace: str) -> dict[str, Any]:
    """``clientConfig`` for the Service of the webhook."""
    return {"service": {"namespace": namespace, "name": NAME, "port": 443}}


def configuration(documents: Iterable[Document], client: Document) -> dict[str, Any]:
    """One webhook for each binding of a MutatingAdmissionPolicy.

    Args:
        documents: policies and bindings. Documents of other kinds are ignored.
        client: ``clientConfig`` without the path: a service, or a URL.
    """
    given = list(documents)
    policies = {one["metadata"]["name"]: one["spec"] for one in given if one["kind"] == POLICY}
    bindings = [one for one in given if one["kind"] == BINDING]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/name": "queuectl"}},
        "webhooks": [
            _webhook(one, policies[one["spec"]["policyName"]], client) for one in bindings
        ],
    }


def _webhook(binding: Document, policy: Document, client: Document) -> dict[str, Any]:
    return {
        "name": f"{binding['metadata']['name']}.queuectl.dev",
        "clientConfig": _at(client, PATH + binding["spec"]["policyName"]),
        "rules": policy["matchConstraints"]["resourceRules"],
        **binding["spec"].get("matchResources", {}),
        "matchPolicy": "Equivalent",
        "failurePolicy": policy["failurePolicy"],
        "reinvocationPolicy": policy["reinvocationPolicy"],
        "sideEffects": "None",
        "timeoutSeconds": SECONDS,
        "admissionReviewVersions": ["v1"],
    }


def _at(client: Document, path: str) -> dict[str, Any]:
    if "url" in client:
        return {**client, "url": client["url"] + path}
    return {**client, "service": {**client["service"], "path": path}}
