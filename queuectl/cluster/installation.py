"""The identity of a cluster, which distinguishes it from all others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.errors import ClusterUnavailable

_PATH: Final = "/api/v1/namespaces"
_OLDEST: Final = "kube-system"
"""A namespace that exists as long as the cluster. Its uid is the usual identity of a cluster."""


class _Metadata(msgspec.Struct):
    uid: str


class _Namespace(msgspec.Struct):
    metadata: _Metadata


class _Namespaces(msgspec.Struct):
    items: list[_Namespace]


async def cluster_uid(kubeconfig: Path | None) -> str:
    """The uid of the namespace ``kube-system``, over a separate connection.

    Raises:
        BadInput: the kubeconfig is wrong.
        ClusterError: the API server does not answer, or refuses to.
    """
    api = await Api.connect(Connection(kubeconfig))
    try:
        query = (
            ("fieldSelector", f"metadata.name={_OLDEST}"),
        )  # there is a right to list, and none to get
        answer = await api.request("GET", _PATH, query=query)
        items = msgspec.json.decode(answer, type=_Namespaces).items
    except ValueError as error:
        raise ClusterUnavailable(f"GET {_PATH}: {error}") from error
    finally:
        await api.close()
    if not items:
        raise ClusterUnavailable(f"the cluster has no namespace {_OLDEST}")
    return items[0].metadata.uid
