"""Parses quota overrides."""

from __future__ import annotations

from queuectl.domain.queues import QuotaOverride
from queuectl.objects.configuration import wire
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.requests import read_amount
from queuectl.objects.kubernetes.wire import Quantity
from queuectl.objects.names import is_label_key, is_name
from queuectl.objects.times import parse_time


def read_override(document: wire.QuotaOverrideDocument) -> QuotaOverride:
    """Raises RequestError naming field and value."""
    spec = document.spec
    for field, name in (("clusterQueue", spec.cluster_queue), ("flavor", spec.flavor)):
        if not is_name(name):
            raise RequestError(f"spec.{field}: {name!r} is not a name")
    if not is_label_key(spec.resource):
        raise RequestError(f"spec.resource: {spec.resource!r} is not a resource name")
    begins, ends = _moment(spec.begins, "from"), _moment(spec.until, "until")
    if ends <= begins:
        raise RequestError(f"spec.until: {spec.until!r} is not after spec.from")
    if (spec.nominal_quota is None) == (spec.add is None):
        raise RequestError("spec: give either nominalQuota or add")
    nominal = spec.nominal_quota
    return QuotaOverride(
        name=document.metadata.name,
        cluster_queue=spec.cluster_queue,
        flavor=spec.flavor,
        resource=spec.resource,
        begins=begins,
        ends=ends,
        nominal=None if nominal is None else _amount(spec.resource, nominal, "nominalQuota"),
        add=0 if spec.add is None else _signed(spec.resource, spec.add),
    )


def _moment(text: str, field: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise RequestError(f"spec.{field}: {error}") from None


def _signed(resource: str, written: Quantity) -> int:
    text = str(written)
    amount = _amount(resource, text.removeprefix("-"), "add")
    return -amount if text.startswith("-") else amount


def _amount(resource: str, written: Quantity, field: str) -> int:
    try:
        return read_amount(resource, written, round_up=False)
    except RequestError as error:
        raise RequestError(f"spec.{field}: {error}") from None
