"""Identities, rights, sessions and the audit log in memory, instead of the API server and the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from queuectl.db.engine import storable
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.identity import API_GROUP, Caller, Right, Session

Reach = Callable[[], Awaitable[object]]


@dataclass
class MemoryAccess:
    """Callers by token, with their rights. ``down``: the API server is down; ``asked``: all rights that were reviewed; ``addresses``: by token."""

    callers: dict[str, Caller] = field(default_factory=dict)
    granted: dict[str, set[Right]] = field(default_factory=dict)
    masters: set[str] = field(default_factory=set)
    down: bool = False
    asked: list[tuple[str, Right]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def know(self, token: str, name: str, *rights: Right, master: bool = False) -> Caller:
        """Add a caller. ``rights``: without a name for every name, without a namespace for every namespace."""
        caller = self.callers[token] = Caller(name, ("system:authenticated",))
        self.granted.setdefault(name, set()).update(rights)
        if master:
            self.masters.add(name)
        return caller

    async def who(self, token: str) -> Caller | None:
        await self._reach()
        return self.callers.get(token)

    async def verified_address(self, token: str) -> str | None:
        await self._reach()
        return self.addresses.get(token)

    async def may(self, caller: Caller, right: Right) -> bool:
        await self._reach()
        self.asked.append((caller.name, right))
        if not right.nameable:
            return False
        granted = self.granted.get(caller.name, set())
        wider = [right, replace(right, name=""), replace(right, name="", namespace="")]
        return caller.name in self.masters or any(one in granted for one in wider)

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise ClusterUnavailable(f"POST {API_GROUP}: connection refused")


class MemorySessions:
    """Same methods and meanings as SessionStore."""

    def __init__(self, rows: dict[str, Session], reach: Reach) -> None:
        self._rows = rows
        self._reach = reach

    async def open(self, key: str, caller: Caller, seconds: float, ends: float | None) -> Session:
        await self._reach()
        now = time.time()
        for old in [k for k, known in self._rows.items() if known.until <= now]:
            del self._rows[old]
        until = now + seconds
        opened = Session(caller, now, until if ends is None else min(until, ends))
        self._rows[key] = opened
        return opened

    async def find(self, key: str) -> Session | None:
        await self._reach()
        found = self._rows.get(key)
        return found if found is not None and found.until > time.time() else None

    async def close(self, key: str) -> None:
        await self._reach()
        self._rows.pop(key, None)


class MemoryAudit:
    """Same methods and meanings as AuditLog."""

    def __init__(self, rows: list[AuditLine], reach: Reach) -> None:
        self._rows = rows
        self._reach = reach

    async def begin(self, line: AuditLine) -> int:
        await self._reach()
        return self.add(replace(line, at=time.time()))

    def add(self, line: AuditLine) -> int:
        """Add a line as part of another write."""
        number = self._rows[-1].id + 1 if self._rows else 1
        caller, path = storable(line.caller), storable(line.path)
        detail = storable(line.detail)
        self._rows.append(replace(line, id=number, caller=caller, path=path, detail=detail))
        return number

    async def end(self, number: int, outcome: RequestOutcome) -> None:
        await self._reach()
        for place, line in enumerate(self._rows):
            if line.id == number:
                self._rows[place] = replace(
                    line,
                    operation=outcome.operation,
                    status=outcome.status,
                    detail=storable(outcome.detail),
                )

    async def lines(self, wanted: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        await self._reach()
        return tuple([line for line in reversed(self._rows) if wanted.matches(line)][:limit])

    async def prune(self, age: float) -> int:
        await self._reach()
        before = time.time() - age
        old = sum(line.at < before for line in self._rows)
        self._rows[:] = [line for line in self._rows if line.at >= before]
        return old
