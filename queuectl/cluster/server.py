"""The version of the API server and the resources that it serves, and the differences between versions that queuectl adapts to.

This module names all these differences. Kubernetes 1.36 and newer need no adaptation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from queuectl.cluster.client import Api
from queuectl.cluster.remembered import Remembered
from queuectl.domain.errors import ClusterUnavailable, ObjectGone

# ---- Discovery of a resource
#
# A 404 alone does not show that the API server lacks a resource: a proxy or a load balancer can also answer with it.


class _ServedVersion(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct):
    versions: list[_ServedVersion]


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


# ---- Version of the API server

MINIMUM: Final = (1, 33)
"""The oldest version that `make test-versions` tests."""

_VALID_SECONDS: Final = 600.0


_Number = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,9}\+?$")]


class _Version(msgspec.Struct):
    major: _Number
    minor: _Number


_version: Final = msgspec.json.Decoder(_Version).decode


@dataclass(frozen=True, order=True, slots=True)
class Server:
    """An API server of this version, as a pair of numbers."""

    version: tuple[int, int]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def supported(self) -> bool:
        """Whether queuectl runs on it."""
        return self.version >= MINIMUM

    @property
    def has_mutating_policies(self) -> bool:
        """MutatingAdmissionPolicy is v1. Before, the webhook of queuectl mutates new jobs."""
        return self.version >= (1, 36)

    @property
    def keeps_templates_mutable(self) -> bool:
        """The template of a suspended Job can change after a first start. Before, only while ``status.startTime`` is empty."""
        return self.version >= (1, 36)

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs of queuectl on this version that newer ones do not have."""
        found: tuple[str, ...] = ()
        if not self.has_mutating_policies:
            found += ("the webhook for new jobs (queuectl webhook)",)
        if not self.keeps_templates_mutable:
            found += ("the right to patch the status of Jobs",)
        return found


async def discover(api: Api) -> Server:
    """The present version of the API server. Raises ClusterError, also if the answer is not from an API server."""
    body = await api.request("GET", "/version")
    try:
        version = _version(body)
    except msgspec.MsgspecError as error:
        text = body[:100].decode(errors="replace")
        raise ClusterUnavailable(
            f"GET /version: no version of Kubernetes: {error}: {text}"
        ) from error
    return Server((_number(version.major), _number(version.minor)))


def _number(text: str) -> int:
    """Some distributions write ``36+``."""
    return int(text.rstrip("+") or 0)


class Discovered:
    """The version of one API server, which is read again after ten minutes: a cluster is upgraded while queuectl runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: Remembered[None, Server] = Remembered(lambda *_: _VALID_SECONDS, most=1)

    async def get(self) -> Server:
        """The version. Raises ClusterError."""
        return await self._known.get(None, lambda: discover(self._api))
