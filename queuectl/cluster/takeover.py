"""Reads the Workloads of a Kueue that was stopped, once, to adopt its jobs with the admissions that Kueue made."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from queuectl.cluster.client import Api
from queuectl.cluster.server import confirm_absent
from queuectl.cluster.stream import LEVELS, decoded
from queuectl.domain.errors import ClusterUnavailable, ObjectGone
from queuectl.domain.jobs import PriorAdmission
from queuectl.objects.errors import RequestError
from queuectl.objects.files.workloads import WireLeftWorkload, read_prior_admission

log = logging.getLogger(__name__)

_PATHS: Final = tuple(
    f"/apis/kueue.x-k8s.io/{version}/workloads" for version in ("v1beta2", "v1beta1")
)
_PAGE: Final = 500


class _Meta(msgspec.Struct):
    next: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


_page = msgspec.json.Decoder(_Page).decode
_workload = msgspec.json.Decoder(WireLeftWorkload).decode


async def read_admissions(api: Api) -> list[PriorAdmission]:
    """The admissions of all unfinished Workloads; none if the kind is not installed.

    Raises:
        ClusterError: the Workloads cannot be read in any version.
    """
    failed: ClusterUnavailable | None = None
    for path in _PATHS:
        try:
            return await _list(api, path)
        except ObjectGone:
            await confirm_absent(api, path)
        except ClusterUnavailable as error:
            # Only Kueue's webhook converts objects that are stored in another version, and it is stopped.
            failed = failed or error
    if failed is not None:
        raise failed
    return []


async def _list(api: Api, path: str) -> list[PriorAdmission]:
    objects, token = [], ""
    while True:
        query = [("limit", str(_PAGE)), *([("continue", token)] if token else [])]
        body = await api.request("GET", path, query=query)
        try:
            page = decoded(_page, body, LEVELS + 2)
        except ValueError as error:
            raise ClusterUnavailable(f"{path}: not a list: {error}") from error
        for raw in page.items:
            try:
                admission = read_prior_admission(_workload(raw))
            except (ValueError, RequestError) as error:
                log.warning("%s: a Workload is passed over: %s", path, error)
                continue
            if admission is not None:
                objects.append(admission)
        token = page.metadata.next
        if not token:
            return objects
