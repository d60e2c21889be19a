"""Kubeconfig files without references to other files. Only the owner can read them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

from queuectl.localcluster.certificates import KeyPair, write_secret

if TYPE_CHECKING:
    from pathlib import Path


def write(
    path: Path, *, cluster: str, server: str, authority: bytes, user: str, identity: KeyPair | str
) -> Path:
    """Write a kubeconfig with one context.

    Args:
        path: The file to write, in an existing folder.
        cluster: Name of the cluster and of the context.
        server: URL of the API server.
        authority: The CA of the server, as PEM.
        user: Name of the user entry; it has no effect.
        identity: A client certificate or a bearer token.

    Returns:
        The path.
    """
    credentials: dict[str, Any]
    if isinstance(identity, KeyPair):
        credentials = {
            "client-certificate-data": _encode(identity.certificate),
            "client-key-data": _encode(identity.key),
        }
    else:
        credentials = {"token": identity}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {"server": server, "certificate-authority-data": _encode(authority)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": cluster, "context": {"cluster": cluster, "user": user, "namespace": "default"}}
        ],
        "current-context": cluster,
    }
    write_secret(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
