"""Users of a test cluster: ServiceAccounts with tokens, and their roles in namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from queuectl.localcluster import LocalCluster

RBAC = "rbac.authorization.k8s.io"
Document = dict[str, Any]


def namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def account(where: str, name: str) -> Document:
    metadata = {"name": name, "namespace": where}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def role(name: str, rules: Sequence[Mapping[str, Any]]) -> Document:
    metadata = {"name": name}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": list(rules),
    }


def binding(name: str, role: str, account: Document, where: str = "") -> Document:
    """``where``: the namespace in which the role counts; empty = everywhere."""
    subject = {"kind": "ServiceAccount", **account["metadata"]}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if where else "ClusterRoleBinding",
        "metadata": {"name": name} | ({"namespace": where} if where else {}),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


def group_binding(name: str, role: str, group: str, where: str) -> Document:
    """A role for a group of users in one namespace."""
    made = binding(name, role, account(where, name), where)
    return {**made, "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}]}


class Plane(Protocol):
    """A control plane of a test."""

    @property
    def cluster(self) -> LocalCluster: ...


async def token_of(plane: Plane, account: Document, audience: str | None = None) -> str:
    """A fresh token, as ``kubectl create token`` makes it."""
    metadata = account["metadata"]
    spec = {"audiences": [audience]} if audience else {}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{metadata['name']}/token"
    made = await asyncio.to_thread(plane.cluster.client.create, path, request)
    return str(made["status"]["token"])
