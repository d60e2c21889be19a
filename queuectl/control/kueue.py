"""Whether labels and annotations with Kueue's prefix are ours to act on: two masters never share a job.

The rule ``kueueKeys`` says ``on``, ``off``, or ``auto``: where the policies act on Kueue's label (an opt-in) and no Kueue is
installed. Both are looked for at start and, since they may change, from time to time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from queuectl.control.ports import Cluster, Store
from queuectl.domain.errors import BadInput, ClusterError, StoreUnavailable
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import PriorAdmission
from queuectl.domain.rules import KueueKeys
from queuectl.objects.configuration.queue_config import ONLY_NAME, build
from queuectl.objects.kinds import KINDS

log = structlog.get_logger()

LOOK_SECONDS = 10.0
RETRY_SECONDS = 2.0
_RULES = DocumentKey("Configuration", "", ONLY_NAME)
NAMED = 10  # jobs of a kind we do not know that are named in the log


class KueueDetector:
    """Looks for a Kueue, as the rule in the database says."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._version = 0  # of the document that the rule was read from; 0 = there was none
        self._rule = KueueKeys.AUTO

    async def keys_count(self) -> bool:
        """Whether they do now; asks until there is an answer."""
        while True:
            try:
                await self._read_rule()
                if self._rule is not KueueKeys.AUTO:
                    return self._rule is KueueKeys.ON
                # In this order: the right to look for a Kueue comes with the opt-in.
                return await self._cluster.kueue_keys_act() and not await self._cluster.kueue_runs()
            except (ClusterError, StoreUnavailable) as error:
                log.warning("kueue_not_looked_for", why=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def changed(self, since: bool) -> bool:
        """Wait until the answer differs from ``since``; the new one."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self.keys_count()
            if now is not since:
                log.warning("kueue_keys_changed", count=now)
                return now

    async def admissions(self) -> list[PriorAdmission]:
        """What a Kueue that is gone had decided of jobs that are ours now; asks until there is an answer."""
        while True:
            try:
                found = await self._cluster.read_admissions()
                break
            except ClusterError as error:
                log.warning("workloads_not_read", why=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        strange = Counter(admission.kind for admission in found if admission.kind not in KINDS)
        for kind, count in sorted(strange.items()):
            refs = [admission.ref for admission in found if admission.kind == kind]
            log.warning("jobs_left_alone", kind=kind, count=count, jobs=refs[:NAMED])
        return [admission for admission in found if admission.kind in KINDS]

    async def _read_rule(self) -> None:
        """From the one document that holds it, and only when that was written anew: this is asked for ever."""
        stored = await self._store.get_config(_RULES)
        version = stored.version if stored is not None else 0
        if version == self._version:
            return
        try:
            documents = [stored.document] if stored is not None else []
            self._rule = build(documents, version).rules.kueue_keys
        except BadInput as error:  # told by the loop, too, which keeps what it had
            log.warning("configuration_unreadable", why=str(error))
        self._version = version
