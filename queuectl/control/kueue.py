"""Whether queuectl manages jobs by labels and annotations with Kueue's prefix. Two controllers never manage the same job.

The rule ``kueueKeys`` is ``on``, ``off`` or ``auto``. With ``auto`` the keys count if the policies act on Kueue's label (an opt-in) and no
Kueue is installed. The controller checks both at its start and then periodically.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from queuectl.control.ports import Cluster
from queuectl.db.ports import LeaderStore
from queuectl.domain.errors import BadInput, ClusterError, StoreUnavailable
from queuectl.domain.jobs import PriorAdmission
from queuectl.domain.queries import DocumentKey
from queuectl.domain.rules import KueueKeys
from queuectl.objects.configuration.config_kinds import ONLY_NAME
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.kinds import KINDS, JobKinds

log = structlog.get_logger()

POLL_SECONDS = 10.0
RETRY_SECONDS = 2.0
_RULES = DocumentKey("Configuration", "", ONLY_NAME)
NAMED = 10  # jobs of unknown kinds that are named in the log


class KueueDetector:
    """Checks for a Kueue by the rule in the database."""

    def __init__(self, cluster: Cluster, store: LeaderStore, kinds: JobKinds = KINDS) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._store = store
        self._version = 0  # of the document with the rule; 0 without one
        self._rule = KueueKeys.AUTO

    async def keys_count(self, unknown: bool = False) -> bool:
        """Whether Kueue's keys count now. Retries until there is an answer. ``unknown``: the result where the API server refuses the probe."""
        while True:
            try:
                await self._read_rule()
                if self._rule is not KueueKeys.AUTO:
                    return self._rule is KueueKeys.ON
                # In this order: the permission to check for a Kueue is a part of the opt-in.
                acts = await self._cluster.kueue_keys_act()
                if acts is None:
                    return unknown
                return acts and not await self._cluster.kueue_runs()
            except (ClusterError, StoreUnavailable) as error:
                log.warning("kueue_not_detected", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def changed(self, since: bool) -> bool:
        """Wait until the answer differs from ``since``; the new one."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = await self.keys_count(unknown=since)
            if now is not since:
                log.warning("kueue_keys_changed", enabled=now)
                return now

    async def admissions(self) -> list[PriorAdmission]:
        """The admissions of a Kueue that was stopped. Retries until there is an answer."""
        while True:
            try:
                admissions = await self._cluster.read_admissions()
                break
            except ClusterError as error:
                log.warning("kueue_workloads_not_read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        unsupported = Counter(
            admission.kind for admission in admissions if admission.kind not in self._kinds
        )
        for kind, count in sorted(unsupported.items()):
            refs = [admission.ref for admission in admissions if admission.kind == kind]
            log.warning("jobs_ignored", kind=kind, count=count, jobs=refs[:NAMED])
        return [admission for admission in admissions if admission.kind in self._kinds]

    async def _read_rule(self) -> None:
        """The rule from its document, which is read only after a new write, because this check repeats indefinitely."""
        stored = await self._store.get_config(_RULES)
        version = stored.version if stored is not None else 0
        if version == self._version:
            return
        try:
            documents = [stored.document] if stored is not None else []
            self._rule = build(documents, version).rules.kueue_keys
        except BadInput as error:  # the loop also logs it, and keeps its configuration
            log.warning("configuration_unreadable", error=str(error))
        self._version = version
