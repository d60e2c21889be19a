"""The state of the server and of its database."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from queuectl.cli.client import Json
from queuectl.cli.doctor import judge, shadow
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.client.client import Client
from queuectl.client.errors import ClientError, RequestRefused
from queuectl.distribution import version
from queuectl.domain.errors import BadInput, StoreError
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.objects.configuration.config_kinds import BY_KIND, PREFIX

ASK_LEADER: Final = "give the address of the leader with --server"
_NO_METRICS: Final = "the answer of /metrics is not metrics, so it is not from queuectl"
_ALARMS: Final = "queuectl_utilization_alarms"
_CALLERS: Final = "queuectl_api_callers"
_ADDRESSES: Final = "queuectl_api_caller_addresses"
_TRUST: Final = "queuectl_utilization_trust_info"
_SET_ASIDE: Final = "queuectl_set_aside"
_UNKNOWN_KIND: Final = "queuectl_followed_kind_unknown"
_EDITS: Final = "queuectl_followed_edits"


def examine(client: Client) -> tuple[list[Finding], bool]:
    """Findings on readiness, version and GPU metrics of the server, and whether it answers."""
    try:
        findings = judge.readiness(_blockers(client))
    except ClientError as error:
        return [Finding("server", Level.PROBLEM, str(error))], False
    try:
        samples = samples_of(client.text("/metrics"))
    except ClientError as error:
        fix = "run it as a user with the right to get metrics of queuectl.dev"
        return [*findings, Finding("versions", Level.UNKNOWN, str(error), fix)], True
    except ValueError:
        fix = "give the address of queuectl with --server"
        return [*findings, Finding("versions", Level.UNKNOWN, _NO_METRICS, fix)], True
    return findings + of_metrics(samples, version()), True


def samples_of(text: str) -> list[Sample]:
    """The samples of an exposition of metrics. Raises ValueError if it is not one."""
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


def of_metrics(samples: Iterable[Sample], ours: str, ask_leader: str = ASK_LEADER) -> list[Finding]:
    """Findings from the server's metrics, on its version, its callers and GPU use.

    Args:
        samples: all of them.
        ours: this version.
        ask_leader: how to examine the leader instead.
    """
    theirs: str | None = None
    alarms: dict[str, float] = {}
    leads, trusts = False, ""
    aside: dict[str, float] = {}
    kinds: dict[str, float] = {}
    edits: dict[str, float] = {}
    callers = {_CALLERS: 0.0, _ADDRESSES: 0.0}
    gauges: dict[str, float] = {}
    for sample in samples:
        if sample.name == "queuectl_build_info":
            theirs = sample.labels["version"]
        elif sample.name == "queuectl_leader":
            leads = sample.value > 0
        elif sample.name == _ALARMS:
            alarms[sample.labels["reason"]] = sample.value
        elif sample.name in callers:
            callers[sample.name] = sample.value
        elif sample.name == _TRUST:
            trusts = sample.labels["trusts"]
        elif sample.name == _SET_ASIDE:
            aside[sample.labels["boundary"]] = sample.value
        elif sample.name == _UNKNOWN_KIND:
            kinds[sample.labels["resource"]] = sample.value
        elif sample.name == _EDITS:
            edits[sample.labels["status"]] = sample.value
        elif sample.name.startswith(shadow.PREFIX):
            gauges[sample.name.removeprefix(shadow.PREFIX)] = sample.value
    found = judge.skew(theirs, ours) + judge.contained(aside)
    found += judge.followed(kinds, edits)
    found += judge.addresses(callers[_CALLERS], callers[_ADDRESSES])
    if observes := shadow.findings(gauges, time.time()):
        return found + observes
    return found + judge.measured(alarms or None, ask_leader, leads=leads, trusts=trusts)


def audited(client: Client) -> list[Finding]:
    """Findings of the leader's complete check of invariants."""
    try:
        return judge.audit(client.get("/api/v1/invariants"))
    except ClientError as error:
        fix = "give the address of the leader with --server, as a user with the right to get invariants of queuectl.dev"
        return [Finding("audit", Level.UNKNOWN, str(error), fix)]


def configured(client: Client, kind: str) -> list[Json] | None:
    """All objects of a kind; None where the server does not return them."""
    try:
        found: list[Json] = client.get(BY_KIND[kind].collection())["items"]
    except ClientError:
        return None
    return found


def not_aligned(client: Client) -> list[str]:
    """The gangs for which no node can give each pod one NUMA node, at most those of one page; none without an answer."""
    try:
        page = client.get(f"{PREFIX}/workloads", reason=Code.UNSUPPORTED, state=State.PENDING)
    except ClientError:
        return []
    with_numa = (one for one in page["items"] if "numa" in one["reason"]["details"])
    return [f"{one['namespace']}/{one['name']}" for one in with_numa]


def _blockers(client: Client) -> list[str]:
    try:
        client.get("/readyz")
    except RequestRefused as refused:
        return refused.blockers or [str(refused)]
    return []


async def database(url: str) -> list[Finding]:
    """Findings on the database: whether it answers, the revision of its schema, and the replicas that use it."""
    from queuectl.db import engine, migrate

    address = ""
    try:
        address = engine.address_of(url)
        state = await migrate.current(url)
    except (BadInput, StoreError) as error:
        return judge.unusable(address, error, "QUEUECTL_DATABASE_URL")
    found = [(str(one), one.release, one.expired) for one in state.replicas]
    schema = judge.schema(address, state.current, state.head, migrated=state.recognized)
    return schema + judge.replicas(found, version()) + judge.bundled(url)


async def database_of_api(url: str) -> list[Finding]:
    """Findings on the database with the role of the REST API."""
    from queuectl.db import engine
    from queuectl.db.store import PostgresApiStore

    address = ""
    try:
        address = engine.address_of(url)
        settings = engine.DatabaseSettings.from_environment(url, api=True)
        await (await PostgresApiStore.connect(settings)).close()
    except (BadInput, StoreError) as error:
        return judge.unusable(address, error, "QUEUECTL_API_DATABASE_URL")
    return [Finding("database", Level.OK, f"{address}: reachable")]
