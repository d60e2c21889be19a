"""Whether the API server serves a resource, by its discovery.

A 404 alone is no evidence: a proxy or a load balancer can also answer it, for a resource with objects.
"""

from __future__ import annotations

from typing import Final

import msgspec

from queuectl.cluster.client import Api
from queuectl.domain.errors import ClusterUnavailable, ObjectGone


class _Version(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


class _Groups(msgspec.Struct, tag_field="kind", tag="APIGroupList"):
    groups: list[_Group]


class _Named(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct, tag_field="kind", tag="APIResourceList"):
    resources: list[_Named]


_groups: Final = msgspec.json.Decoder(_Groups).decode
_resources: Final = msgspec.json.Decoder(_Resources).decode


async def confirm_absent(api: Api, path: str) -> None:
    """Return if the discovery of the API server does not list the resource.

    Args:
        api: the API server.
        path: of the collection in all namespaces, ``/apis/GROUP/VERSION/PLURAL``.

    Raises:
        ClusterError: it serves the resource, or its discovery is not available.
    """
    base, _, plural = path.rpartition("/")
    try:
        found = _groups(await api.request("GET", "/apis"))
        served = {version.group_version for group in found.groups for version in group.versions}
        if base.removeprefix("/apis/") not in served:
            return
        listed = _resources(await api.request("GET", base)).resources
    except (ObjectGone, msgspec.MsgspecError) as error:
        text = f"{path}: answered 404, and the API server does not list what it serves: {error}"
        raise ClusterUnavailable(text) from error
    if any(one.name == plural for one in listed):
        raise ClusterUnavailable(f"{path}: answered 404, but the API server lists it as served")
