"""The version of a collection now, with which a watch can be compared.

A connection that broke without an error is silent for minutes before it counts as dead. Until then, its watch shows an older state.
"""

from __future__ import annotations

from typing import Final

import msgspec

from queuectl.cluster.client import Api
from queuectl.domain.errors import ClusterUnavailable

_METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str


class _List(msgspec.Struct):
    metadata: _Meta


_list: Final = msgspec.json.Decoder(_List).decode


async def current_version(api: Api, path: str) -> int:
    """The resourceVersion of a collection, by a consistent read of at most one object.

    Raises:
        ClusterError: no usable answer.
    """
    body = await api.request("GET", path, query=[("limit", "1")], accept=_METADATA_ONLY)
    try:
        return int(_list(body).metadata.resource_version)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterUnavailable(f"{path}: not a list: {error}") from error
