"""The nodes of a cluster and the configuration of its server, as documents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from queuectl.cli import extras
from queuectl.cli.client import connect
from queuectl.cli.config import stored
from queuectl.cli.errors import CommandFailed
from queuectl.cli.extras import Extra
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address

_PATHS: Final = {"Node": "/api/v1/nodes", "Namespace": "/api/v1/namespaces"}


def live_objects(server: str) -> list[Document]:
    """Nodes and namespaces of the kubeconfig's cluster, and all configuration of the server.

    Raises:
        CommandFailed: one of them does not answer, or the extra for the cluster is missing.
    """
    if extras.missing(Extra.SERVER):
        hint = extras.install_hint(Extra.SERVER)
        message = f"to read the cluster, --live {hint}; or pipe kubectl get nodes -o yaml into -f -"
        raise CommandFailed(message)
    with connect(server) as client:
        bodies = stored(client)
    bodies += asyncio.run(_of_cluster())
    address = Address("the cluster", 0, 0)
    return [Document(address, body) for body in bodies]


async def _of_cluster() -> list[dict[str, Any]]:
    from queuectl.cli.reads import cluster_connection, list_items
    from queuectl.cluster.client import Api

    api = await Api.connect(cluster_connection())
    try:
        return [
            _typed(kind, item)
            for kind, path in _PATHS.items()
            for item in await list_items(api, path)
        ]
    finally:
        await api.close()


def _typed(kind: str, listed: Mapping[str, Any]) -> dict[str, Any]:
    """Items of a list do not name their kind."""
    return {"apiVersion": "v1", "kind": kind, **listed}
