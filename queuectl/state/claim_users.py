"""The gangs that use ResourceClaims by name, and which of them is charged for each claim.

queuectl starts no gang whose claim another gang uses. But gangs that ran before queuectl was installed can share a claim. Its devices then
count for the gang that started first, and when it has ended, for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from queuectl.devices.shared import ClaimKey, first_user
from queuectl.domain.job_records import JobRecord
from queuectl.domain.ledger import Entry


class ClaimUsers:
    """Gangs that hold capacity, updated with each change of one."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._claims: dict[str, frozenset[ClaimKey]] = {}
        self._users: dict[ClaimKey, dict[str, float]] = {}

    def put(self, entry: Entry, job: JobRecord | None, *, holds: bool) -> frozenset[str]:
        """Take over the state of a gang.

        Args:
            entry: of the gang.
            job: None = it was deleted; the gang uses the same claims as before.
            holds: whether the gang holds capacity.

        Returns:
            Uids of other gangs that are charged for more or fewer claims now.
        """
        uid = entry.uid
        before = self._claims.get(uid, frozenset())
        after = before if job is None else _claims_of(job)
        after = after if holds and entry.placement is not None else frozenset()
        if not before and not after:
            return frozenset()
        concerned = sorted(before | after)
        charged = [self.charged(key) for key in concerned]
        self._replace(entry, before, after)
        now_charged = [self.charged(key) for key in concerned]
        changed = zip(charged, now_charged, strict=True)
        others = {one for pair in changed if pair[0] != pair[1] for one in pair if one is not None}
        return frozenset(others - {uid})

    def _replace(
        self, entry: Entry, before: frozenset[ClaimKey], after: frozenset[ClaimKey]
    ) -> None:
        uid = entry.uid
        for key in before:
            self._users[key].pop(uid, None)
            if not self._users[key]:
                del self._users[key]
        self._entries.pop(uid, None)
        self._claims.pop(uid, None)
        if after:
            self._entries[uid], self._claims[uid] = entry, after
            for key in after:
                self._users.setdefault(key, {})[uid] = started(entry)

    def charged(self, key: ClaimKey) -> str | None:
        """The gang that is charged for a claim; None if no gang uses it."""
        users = self._users.get(key)
        return first_user(users) if users else None

    def not_charged(self, uid: str) -> frozenset[ClaimKey]:
        """The claims of a gang for which another gang is charged."""
        return frozenset(key for key in self._claims.get(uid, ()) if self.charged(key) != uid)

    def entry(self, uid: str) -> Entry:
        """The state of a gang that uses claims."""
        return self._entries[uid]

    @property
    def uids(self) -> Mapping[str, Entry]:
        """All gangs that use claims."""
        return self._entries


def started(entry: Entry) -> float:
    """When the attempt of a gang started, unix seconds."""
    return entry.started_at or entry.since


def _claims_of(job: JobRecord) -> frozenset[ClaimKey]:
    def names() -> Iterator[str]:
        for podset in job.podsets:
            yield from podset.shared_claims

    return frozenset((job.namespace, name) for name in names())
