"""The stored configuration as domain values, for reads. A read parses only the documents that changed since the last one."""

from __future__ import annotations

import asyncio

from queuectl.db.ports import ApiStore
from queuectl.domain.queries import ConfigChanges
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.catalog import Catalog


class CurrentConfiguration:
    """The configuration in one process. A thread parses changed documents."""

    def __init__(self, store: ApiStore) -> None:
        self._store = store
        self._catalog = Catalog()
        self._config: QueueConfig | None = None
        self._reading = asyncio.Lock()

    async def config(self) -> QueueConfig:
        """The current configuration without QuotaOverrides.

        Raises:
            DocumentError: a document is invalid.
            StoreUnavailable: no response from the database.
        """
        async with self._reading:
            known = self._config.revision if self._config is not None else 0
            changes = await self._store.config_changes(known, self._catalog.keys)
            if self._config is None or self._config.revision != changes.revision:
                self._config = await asyncio.to_thread(self._follow, changes)
            return self._config

    def _follow(self, changes: ConfigChanges) -> QueueConfig:
        self._catalog.follow(changes)
        return self._catalog.config(changes.revision)
