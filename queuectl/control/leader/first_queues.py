"""Queues for the nodes of a new installation, which a leader applies by itself if a setting asks for it.

The proposal is the output of ``queuectl init``. It is one transaction, which needs the revision 0 of the configuration: no document was ever
written. The revision only rises, so the proposal is applied once at most, and never over documents of a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from queuectl.db.ports import ConfigurationBatch, LeaderStore
from queuectl.domain.audit import AuditLine
from queuectl.domain.devices import DeviceInventory
from queuectl.domain.errors import StaleConfiguration, StoreUnavailable
from queuectl.domain.fleet import Fleet
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.proposal.configuration import Proposal, propose
from queuectl.objects.proposal.devices import with_devices
from queuectl.objects.proposal.labels import gpu_resources
from queuectl.state.mirror import Mirror

SETTLED_SECONDS: Final = 30.0
"""Time without a change of the nodes before they are proposed: device plugins report one node after another."""
LONGEST_SECONDS: Final = 300.0
"""The longest wait for nodes that go on changing, from the first of them."""
QUEUE: Final = "main"
"""Of the ClusterQueue and the LocalQueues, as the default of ``queuectl init``."""
_POLL_SECONDS: Final = 1.0
_FIRST: Final = 0
_State = tuple[Fleet, DeviceInventory]  # both are compared by identity
log = structlog.get_logger()


class FirstQueues:
    """The task of one leadership."""

    def __init__(
        self,
        store: LeaderStore,
        mirror: Mirror,
        namespaces: Sequence[str],
        clock: Callable[[], float],
        epoch: int,
    ) -> None:
        """Read nothing yet.

        Args:
            store: the catalog.
            mirror: the cluster.
            namespaces: each gets a LocalQueue.
            clock: unix seconds.
            epoch: of the leader.
        """
        self._store = store
        self._mirror = mirror
        self._namespaces = namespaces
        self._clock = clock
        self._epoch = epoch

    async def run(self) -> None:
        """Return when the configuration has a document, or had one.

        Raises:
            Fenced: another leader has taken over.
        """
        clock = asyncio.get_running_loop().time
        seen: _State | None = None
        without_gpus: _State | None = None
        changed = first = clock()
        while not await self._was_configured():
            state = self._now()
            if state != seen:
                changed = clock()
                first = changed if seen == without_gpus else first
                seen = state
            settled = clock() - changed >= SETTLED_SECONDS or clock() - first >= LONGEST_SECONDS
            if settled and state != without_gpus:
                proposal, for_gpus = await asyncio.to_thread(self._proposal, state)
                if for_gpus:
                    await self._apply(proposal)
                    continue
                without_gpus = state
                reasons = "; ".join(proposal.left_out) or "no node has a GPU"
                log.info("queues_not_proposed", reason=reasons)
            await asyncio.sleep(_POLL_SECONDS)

    async def _was_configured(self) -> bool:
        try:
            revision, _ = await self._store.configuration()
        except StoreUnavailable as error:
            log.info("queues_not_proposed", reason=str(error))
            return False
        return revision > _FIRST

    def _now(self) -> _State:
        fleet = self._mirror.nodes.fleet
        return fleet, self._mirror.devices.inventory(fleet)

    def _proposal(self, state: _State) -> tuple[Proposal, bool]:
        """The proposal for the nodes, and whether its queue has GPUs. Without, device plugins or labels of GPU models can come later."""
        fleet, inventory = state
        nodes, _ = with_devices(fleet.nodes, inventory, {})
        proposal = propose(nodes, self._namespaces, QUEUE)
        gpus = {resource for node in nodes for resource in gpu_resources(node)}
        for node, plain in zip(nodes, fleet.nodes, strict=True):
            gpus |= {*node.allocatable} - {*plain.allocatable}  # by devices of ResourceSlices
        covered = {
            resource
            for entry in proposal.entries
            for group in entry.body["spec"].get("resourceGroups", ())
            for resource in group["coveredResources"]
        }
        return proposal, bool(gpus & covered)

    async def _apply(self, proposal: Proposal) -> None:
        documents = [validate(entry.body)[0] for entry in proposal.entries]
        lines = [self._line(DocumentKey.of(document)) for document in documents]
        batch = ConfigurationBatch(_FIRST, documents, (), lines)
        try:
            await self._store.write_configuration(batch, epoch=self._epoch)
        except StaleConfiguration:
            return  # a person was faster
        except StoreUnavailable as error:
            log.info("queues_not_proposed", reason=str(error))
            await asyncio.sleep(_POLL_SECONDS)
            return
        left_out = "; ".join(proposal.left_out)
        log.info("queues_proposed", documents=len(documents), left_out=left_out)

    def _line(self, key: DocumentKey) -> AuditLine:
        path = BY_KIND[key.kind].path(key.namespace, key.name)
        detail = "proposed for the nodes at the first start (QUEUECTL_PROPOSE_FOR)"
        return AuditLine.of_leader(self._clock(), "PUT", path, key.kind, detail)
