"""The delivery of events in this process, and the changes of the file with the receivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterError
from queuectl.domain.notifications import NotificationStore
from queuectl.domain.pacing import doubling
from queuectl.notify.delivery import Delivery
from queuectl.notify.messages import Messages
from queuectl.notify.receivers_file import ReceiverList, unreadable_credentials
from queuectl.notify.transports import Transports
from queuectl.notify.worker import DeliveryWorker
from queuectl.telemetry.notifications import NotificationMetrics

REFRESH_SECONDS: Final = 10.0
"""Between two checks of the file. The kubelet takes up to a minute to show a changed ConfigMap."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds
_log = structlog.get_logger()


class Notifications:
    """Delivers events to the receivers of a file. Each replica does so; the store divides the receivers between them.

    Attributes:
        receivers: as the file lists them now.
    """

    def __init__(
        self,
        receivers: ReceiverList,
        store: NotificationStore,
        metrics: NotificationMetrics,
        containment: Containment,
        by: str,
        installation: Callable[[], Awaitable[str]],
    ) -> None:
        """Deliver nothing yet.

        Args:
            receivers: of the file.
            store: the outbox.
            metrics: of this process.
            containment: of this process.
            by: unique name of this process.
            installation: reads the identity of the cluster, with which the ids of its events begin. It can raise ClusterError.
        """
        self.receivers = receivers
        self._store = store
        self._metrics = metrics
        self._containment = containment
        self._by = by
        self._installation = installation

    async def deliver(self) -> None:
        """Deliver until the task is canceled."""
        installation = await self._identity()
        messages = Messages(installation)
        open_channel = Transports(installation).open
        delivery = Delivery(self._store, messages, open_channel, self._metrics, self._by)
        worker = DeliveryWorker(
            self._store,
            delivery,
            lambda: self.receivers.current,
            self._metrics,
            self._containment,
            self._by,
        )
        await worker.run()

    async def _identity(self) -> str:
        """The identity of the cluster, once the API server answers."""
        failures = 0
        while True:
            try:
                return await self._installation()
            except ClusterError as error:
                failures += 1
                _log.warning("cluster_identity_not_read", error=str(error))
                await asyncio.sleep(doubling(_FIRST_PAUSE, _LONGEST_PAUSE, failures))

    async def follow_file(self) -> None:
        """Read the file, and again after each change, until the task is canceled."""
        while True:
            if await asyncio.to_thread(self.receivers.refresh):
                await self._report()
            await asyncio.sleep(REFRESH_SECONDS)

    async def _report(self) -> None:
        """Log the result of a read."""
        if self.receivers.error:
            _log.error("receivers_refused", error=self.receivers.error)
            return
        _log.info("receivers_read", receivers=len(self.receivers.current))
        for receiver in self.receivers.current:
            for problem in await asyncio.to_thread(unreadable_credentials, receiver):
                _log.warning("credential_unreadable", receiver=receiver.name, error=problem)
