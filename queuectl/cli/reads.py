"""Lists of the cluster's API server, with the credentials of the user's kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from queuectl.cli.connection import connection_options
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.stream import LEVELS, decoded
from queuectl.kubeconfig import DEFAULT, expanded

Document = Mapping[str, Any]

_PAGE: Final = 500


def cluster_connection() -> Connection:
    """The cluster that kubectl would use; in a pod, its own cluster."""
    chosen = connection_options()
    path = expanded(chosen.kubeconfig) if chosen.kubeconfig else None
    named = os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")
    if path is None and not named and expanded(DEFAULT).exists():
        path = expanded(DEFAULT)
    return Connection(kubeconfig=path, context=chosen.context)


async def list_items(api: Api, path: str, query: Iterable[tuple[str, str]] = ()) -> list[Document]:
    """All items of a list. ``query``: that selects them. Raises ClusterError."""
    selected = tuple(query)
    found: list[Document] = []
    token = ""
    while True:
        page_query = [("limit", str(_PAGE)), *([("continue", token)] if token else [])]
        body = await api.request("GET", path, query=[*selected, *page_query])
        page = decoded(msgspec.json.decode, body, LEVELS + 2)
        found += page["items"]
        token = page["metadata"].get("continue") or ""
        if not token:
            return found
