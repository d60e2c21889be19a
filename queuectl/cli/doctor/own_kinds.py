"""The job kinds that the chart declares, and their errors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
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


async def declared_kinds(api: Api, namespace: str, file: Path | None = None) -> JobKinds:
    """The job kinds, with the declared ones if they can be read."""
    with suppress(BadInput, ClusterError):
        return await declared(api, namespace, file)
    return KINDS


async def examine(api: Api, namespace: str, file: Path | None = None) -> list[Finding]:
    """Findings on the declared kinds. Can raise ClusterError."""
    try:
        kinds = await declared(api, namespace, file)
    except BadInput as error:
        return judge.kinds(0, [str(error)])
    return judge.kinds(len(kinds) - len(KINDS), await mismatches(api, kinds))


async def declared(api: Api, namespace: str, file: Path | None = None) -> JobKinds:
    """The job kinds, with those that the chart declares for the controller.

    Args:
        api: reads the ConfigMap of the chart.
        namespace: of that ConfigMap.
        file: with its content, where it is mounted; None = not here.

    Raises:
        BadInput: a declaration is wrong.
        ClusterError: the ConfigMap cannot be read.
    """
    if file is not None:
        return _mounted(file)
    path = f"/api/v1/namespaces/{namespace}/configmaps/{_CONFIG_MAP}"
    try:
        body = await api.request("GET", path)
    except ObjectGone:
        return KINDS
    data = msgspec.json.decode(body).get("data") or {}
    return with_declared(read_kinds(data.get(_KEY, ""), f"ConfigMap {namespace}/{_CONFIG_MAP}"))


def _mounted(file: Path) -> JobKinds:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}") from None
    return with_declared(read_kinds(content, str(file)))
