"""Parses resource groups: quotas and limits by flavor and resource, and quota overrides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from queuectl.domain.queues import FlavorQuotas, QuotaOverride, ResourceGroup
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.reservations_wire import QuotaOverrideDocument
from queuectl.objects.configuration.wire import MOST_GROUPS, MOST_IN_ALL, MOST_IN_GROUP, MOST_QUOTAS
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.requests import read_amount
from queuectl.objects.kubernetes.wire import Quantity
from queuectl.objects.names import is_label_key, is_name
from queuectl.objects.times import time_of

# ---- Resource groups


def read_groups(
    groups: list[wire.ResourceGroupSpec], *, in_cohort: bool, lends_at_most_nominal: bool
) -> tuple[ResourceGroup, ...]:
    """The resource groups of a ClusterQueue or a Cohort, with Kueue's limits on their numbers.

    Args:
        groups: from the document.
        in_cohort: whether the object shares quota. Without a cohort, limits have no effect.
        lends_at_most_nominal: whether a lending limit above nominal quota is an error. A Cohort also lends the quota of its
            members.

    Raises:
        RequestError: naming field and value.
    """
    path = "spec.resourceGroups"
    refuse_more(len(groups), MOST_GROUPS, "groups", path)
    refuse_more(sum(len(g.flavors) for g in groups), MOST_IN_ALL, "flavors in all", path)
    refuse_more(
        sum(len(g.covered_resources) for g in groups), MOST_IN_ALL, "resources in all", path
    )
    read = []
    for i, group in enumerate(groups):
        _check_sizes(group, f"{path}[{i}]")
        flavors = tuple(
            _read_quotas(
                quotas,
                group.covered_resources,
                f"{path}[{i}].flavors[{k}]",
                in_cohort=in_cohort,
                lends_at_most_nominal=lends_at_most_nominal,
            )
            for k, quotas in enumerate(group.flavors)
        )
        read.append(ResourceGroup(tuple(group.covered_resources), flavors))
    once((name for group in read for name in group.covered), f"{path}: resource")
    once((quotas.flavor for group in read for quotas in group.flavors), f"{path}: flavor")
    return tuple(read)


def _check_sizes(group: wire.ResourceGroupSpec, path: str) -> None:
    resources, flavors = len(group.covered_resources), len(group.flavors)
    if not resources:
        raise RequestError(f"{path}.coveredResources: is empty")
    if not flavors:
        raise RequestError(f"{path}.flavors: is empty")
    refuse_more(resources, MOST_IN_GROUP, "resources", f"{path}.coveredResources")
    refuse_more(flavors, MOST_IN_GROUP, "flavors", f"{path}.flavors")
    refuse_more(resources * flavors, MOST_QUOTAS, "quotas", path)
    for i, name in enumerate(group.covered_resources):
        if not is_label_key(name):
            raise RequestError(f"{path}.coveredResources[{i}]: {name!r} is not a resource name")


def refuse_more(number: int, most: int, what: str, path: str) -> None:
    """Raises RequestError for more than ``most`` members, Kueue's limit."""
    if number > most:
        raise RequestError(f"{path}: {number} {what}; at most {most} are allowed")


def once(names: Iterable[str], what: str) -> None:
    """Raises RequestError for a duplicate name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise RequestError(f"{what} {str(name)!r} occurs {times} times")


def _read_quotas(
    quotas: wire.FlavorQuotasSpec,
    covered: list[str],
    path: str,
    *,
    in_cohort: bool,
    lends_at_most_nominal: bool,
) -> FlavorQuotas:
    nominal: dict[str, int] = {}
    limits: dict[str, dict[str, int]] = {"borrowingLimit": {}, "lendingLimit": {}}
    for k, quota in enumerate(quotas.resources):
        place = f"{path}.resources[{k}]"
        if quota.name in nominal or quota.name not in covered:
            wrong = "occurs twice" if quota.name in nominal else "is not in coveredResources"
            raise RequestError(f"{place}.name: {quota.name!r} {wrong}")
        nominal[quota.name] = _amount(quota.name, quota.nominal_quota, f"{place}.nominalQuota")
        given = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
        for field, limit in given.items():
            if limit is None:
                continue
            amount = _amount(quota.name, limit, f"{place}.{field}")
            if field == "lendingLimit" and lends_at_most_nominal and amount > nominal[quota.name]:
                raise RequestError(
                    f"{place}.lendingLimit: {str(limit)!r} is more than nominalQuota"
                )
            if in_cohort:
                limits[field][quota.name] = amount
    missing = [name for name in covered if name not in nominal]
    if missing:
        raise RequestError(f"{path}.resources: {missing[0]!r} of coveredResources is missing")
    return FlavorQuotas(quotas.name, nominal, limits["borrowingLimit"], limits["lendingLimit"])


def _amount(resource: str, text: Any, path: str) -> int:
    with under(path):
        return read_amount(resource, text, round_up=False)


# ---- Quota overrides


def read_override(document: QuotaOverrideDocument) -> QuotaOverride:
    """Raises RequestError naming field and value."""
    spec = document.spec
    for field, name in (("clusterQueue", spec.cluster_queue), ("flavor", spec.flavor)):
        if not is_name(name):
            raise RequestError(f"spec.{field}: {name!r} is not a name")
    if not is_label_key(spec.resource):
        raise RequestError(f"spec.resource: {spec.resource!r} is not a resource name")
    begins, ends = time_of(spec.begins, "spec.from"), time_of(spec.until, "spec.until")
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
        nominal=None
        if nominal is None
        else _override_amount(spec.resource, nominal, "nominalQuota"),
        add=0 if spec.add is None else _signed(spec.resource, spec.add),
    )


def _signed(resource: str, written: Quantity) -> int:
    text = str(written)
    amount = _override_amount(resource, text.removeprefix("-"), "add")
    return -amount if text.startswith("-") else amount


def _override_amount(resource: str, written: Quantity, field: str) -> int:
    try:
        return read_amount(resource, written, round_up=False)
    except RequestError as error:
        raise RequestError(f"spec.{field}: {error}") from None
