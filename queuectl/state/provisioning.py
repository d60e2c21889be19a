"""The copy of the ProvisioningRequests of queuectl that the watch keeps, and why the API server refuses others."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.provisioning import ProvisioningRecord


class ProvisioningRequests:
    """Records by uid.

    Attributes:
        refused: (namespace, name) of requests that the API server does not accept, with the reason.
        unanswered: those whose creation got no usable answer, with the error.
    """

    def __init__(self) -> None:
        self.refused: dict[tuple[str, str], str] = {}
        self.unanswered: dict[tuple[str, str], str] = {}
        self._records: dict[str, ProvisioningRecord] = {}
        self._names: dict[tuple[str, str], str] = {}

    def __iter__(self) -> Iterator[ProvisioningRecord]:
        """All of them, oldest first."""
        return iter(list(self._records.values()))

    @property
    def uids(self) -> set[str]:
        """Their keys."""
        return set(self._records)

    def of(self, namespace: str, name: str, gang: str) -> ProvisioningRecord | None:
        """The request of this gang (uid) with this name; None if it does not exist."""
        record = self._records.get(self._names.get((namespace, name), ""))
        return record if record is not None and record.gang == gang else None

    def put(self, record: ProvisioningRecord) -> bool:
        """Keep a record, unless a newer one is known. Whether it is new."""
        known = self._records.get(record.uid)
        if known is not None and known.version >= record.version:
            return False
        self._records[record.uid] = record
        self._names[record.namespace, record.name] = record.uid
        return True

    def drop(self, uid: str) -> ProvisioningRecord | None:
        """Forget a deleted request; returns it."""
        record = self._records.pop(uid, None)
        if record is not None and self._names.get((record.namespace, record.name)) == uid:
            del self._names[record.namespace, record.name]
        return record
