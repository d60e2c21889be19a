"""The job kinds that the chart declares, and their errors."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from queuectl.cli.doctor import judge
from queuectl.cli.doctor.findings import Finding
from queuectl.cluster.client import Api
from queuectl.cluster.server import mismatches
from queuectl.domain.errors import BadInput, ClusterError, ObjectGone
from queuectl.objects.kinds import KINDS, JobKinds, with_declared
from queuectl.objects.kinds.declared import read_kinds

_CONFIG_MAP: Final = "queuectl-job-kinds"  # of the chart
_KEY: Final = "job-kinds.yaml"


async def declared_kinds(api: Api, namespace: str) -> JobKinds:
    """The job kinds, with the declared ones if they can be read."""
    with suppress(BadInput, ClusterError):
        return await declared(api, namespace)
    return KINDS


async def examine(api: Api, namespace: str) -> list[Finding]:
    """Findings on the declared kinds. Can raise ClusterError."""
    try:
        kinds = await declared(api, namespace)
    except BadInput as error:
        return judge.kinds(0, [str(error)])
    return await compared(api, kinds)


async def compared(api: Api, kinds: JobKinds) -> list[Finding]:
    """Findings on kinds, with the declared ones among them. Can raise ClusterError."""
    return judge.kinds(len(kinds) - len(KINDS), await mismatches(api, kinds))


async def declared(api: Api, namespace: str) -> JobKinds:
    """The job kinds, with those that the chart declares for the controller.

    Raises:
        BadInput: a declaration is wrong.
        ClusterError: the ConfigMap cannot be read.
    """
    path = f"/api/v1/namespaces/{namespace}/configmaps/{_CONFIG_MAP}"
    try:
        body = await api.request("GET", path)
    except ObjectGone:
        return KINDS
    data = msgspec.json.decode(body).get("data") or {}
    return with_declared(read_kinds(data.get(_KEY, ""), f"ConfigMap {namespace}/{_CONFIG_MAP}"))
