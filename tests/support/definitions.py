"""CustomResourceDefinitions without the schema of the fields. Objects are stored as with the real ones."""

from __future__ import annotations

from typing import Any


def definition(
    group: str, kind: str, plural: str, *versions: str, scope: str, status: bool = True
) -> dict[str, Any]:
    """The last version is stored. ``status``: it has the subresource."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    more: dict[str, Any] = {"subresources": {"status": {}}} if status else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://example.org/test"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[-1],
                    "schema": {"openAPIV3Schema": schema},
                    **more,
                }
                for version in versions
            ],
        },
    }
