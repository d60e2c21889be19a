"""A careful start: a child process tries everything first, after errors that ended processes before any code could contain them.

A native crash, a lack of memory, or a loop that never returns ends each process that handles the same input. After several such ends,
a child process decodes, observes, plans and verifies with limits, and writes nothing (:mod:`queuectl.control.careful_child`). If it ends
early, the unit that it handled last is a suspect, which the next child leaves out, until a child passes. Then this process works
without the suspects. Only a child tries them again: after the longest back-off, or one time before that after a change.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from queuectl.control.breadcrumb import Breadcrumb
from queuectl.control.ports import Clock
from queuectl.control.progress import LONGEST_STEP
from queuectl.db.ports import LeaderStore
from queuectl.domain.containment import TOGETHER, Containment, SetAside, Suspect
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.processes import ProcessEnd
from queuectl.telemetry.containment import CarefulMetrics

log = structlog.get_logger()

UNKNOWN_ENDS: Final = 3
"""Ends of processes for an unknown reason, after which a process starts carefully."""
WITHIN_SECONDS: Final = 600.0
MOST_CHILDREN: Final = 10
"""Child processes of one careful start. Three suspects of one namespace at one boundary stand for all units of it there."""
CHECK_SECONDS: Final = 15.0
NO_MEMORY: Final = 71
"""The exit status of a child that has reached its limit of memory."""
_COMMAND: Final = (sys.executable, "-m", "queuectl.control.careful_process")
_ABORT_SECONDS: Final = 5.0  # for the traces of a child that hangs
_POLL_SECONDS: Final = 0.2
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_SHARE: Final = 0.8  # of the memory that is left


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended.

    Attributes:
        passed: it has handled everything.
        how: for users.
        suspect: the unit that it handled; None if the end is about no unit.
    """

    passed: bool
    how: str = ""
    suspect: Suspect | None = None


RunChild = Callable[[Sequence[Suspect]], Awaitable[ChildEnd]]
"""Runs a child without some units."""


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A spawned process with limits.

    Attributes:
        database_url: of the database that it reads.
        silence: seconds in which it must begin another unit, after its start.
        cpu_seconds: of the whole child.
        memory: bytes of its data; None = most of the memory that is left.
        command: that runs it.
    """

    database_url: str
    silence: float
    cpu_seconds: int = 600
    memory: int | None = None
    command: Sequence[str] = _COMMAND

    async def __call__(self, suspects: Sequence[Suspect]) -> ChildEnd:
        crumb = Breadcrumb()
        process = None
        arguments = {
            "database_url": self.database_url,
            "suspects": [asdict(one) for one in suspects],
            "breadcrumb": crumb.descriptor,
            "cpu_seconds": self.cpu_seconds,
            "memory": self.memory or memory_left(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(crumb.descriptor,),
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(arguments).encode())
            process.stdin.close()
            hung = await self._hung(process, crumb)
            assert process.returncode is not None
            return _end(process.returncode, crumb, self.silence if hung else 0.0)
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
            crumb.close()

    async def _hung(self, process: asyncio.subprocess.Process, crumb: Breadcrumb) -> bool:
        """Wait for the end of a child, and end it if it does not begin another unit in time."""
        clock = asyncio.get_running_loop().time
        count, since = crumb.count, clock()
        while not await _ended(process, _POLL_SECONDS):
            if crumb.count != count:
                count, since = crumb.count, clock()
            elif clock() - since > (self.silence if count else LONGEST_STEP):
                process.send_signal(signal.SIGABRT)  # it writes the traces of its threads
                if not await _ended(process, _ABORT_SECONDS):
                    process.kill()
                    await process.wait()
                return True
        return False


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _end(code: int, crumb: Breadcrumb, hung: float) -> ChildEnd:
    if code == 0:
        return ChildEnd(passed=True)
    if hung:
        how = f"no progress for {hung:g} s"
    elif code == NO_MEMORY:
        how = "out of memory"
    elif code < 0:
        how = signal.Signals(-code).name
    else:
        return ChildEnd(passed=False, how=f"exit status {code}")
    return ChildEnd(passed=False, how=how, suspect=crumb.suspect(f"ended the process: {how}"))


def memory_left() -> int:
    """Most of the memory, in bytes, that this container and this machine have left."""
    lines = _MEMINFO.read_text().splitlines()
    left = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        stat = (_CGROUP / "memory.stat").read_text().split()
        unused = int(stat[stat.index("inactive_file") + 1])  # the kernel frees it when it is needed
        left = min(left, int(limit) - int(used) + unused)
    except (OSError, ValueError):  # no limit, or no second version of cgroups
        pass
    return int(_SHARE * max(left, 0))


class CarefulStart:
    """The careful start of one process.

    Attributes:
        blocker: why it does not work yet; empty while it does.
    """

    def __init__(
        self,
        store: LeaderStore,
        holder: str,
        containment: Containment,
        clock: Clock,
        metrics: CarefulMetrics,
        run_child: RunChild | None,
    ) -> None:
        """``run_child``: None = no careful starts."""
        self._store = store
        self._holder = holder
        self._containment = containment
        self._clock = clock
        self._metrics = metrics
        self._run_child = run_child
        self.blocker = ""

    async def begun(self) -> None:
        """Note that this process begins to run, as a standby."""
        try:
            await self._store.begin_run(self._holder)
        except StoreUnavailable as error:
            log.warning("process_run_not_written", error=str(error))

    async def ended(self, how: ProcessEnd) -> None:
        """Note how it ended."""
        try:
            await self._store.end_run(self._holder, how)
        except StoreUnavailable as error:
            log.warning("process_run_not_written", error=str(error))

    async def begin(self) -> None:
        """Return when this process can work: at once, unless processes have ended for an unknown reason."""
        try:
            known = await self._store.suspects()
            ends = await self._store.unknown_ends(self._clock() - WITHIN_SECONDS)
        except StoreUnavailable as error:
            log.warning("process_runs_not_read", error=str(error))
            return
        self._set_aside(known)
        if len(ends) < UNKNOWN_ENDS or self._run_child is None:
            return
        self.blocker = "careful start: a child process tries all input"
        log.error("careful_start_begun", ends=len(ends), seconds=WITHIN_SECONDS)
        self._metrics.begun(self._clock())
        try:
            await self._search(self._known())
            await self._keep()
        finally:
            self.blocker = ""  # another process may lead in the meantime

    async def follow(self, released: Callable[[Sequence[SetAside]], None]) -> None:
        """Let a child try the suspects again that are due, until canceled. ``released``: called with those that pass."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = self._clock()
            due = [one for one in self._containment.suspects() if one.until <= now]
            if due and self._run_child is not None:
                released(await self._tried(due))

    async def _tried(self, due: Sequence[SetAside]) -> list[SetAside]:
        """Those of the suspects with which a child passes. The others wait again."""
        others = [one for one in self._known() if one not in {each.suspect for each in due}]
        found, passed = await self._search(others)
        failed = {(one.boundary, one.key, one.namespace) for one in found}
        kept, released = list[Suspect](), list[SetAside]()
        for one in due:
            assert one.suspect is not None
            same = (one.boundary, one.suspect.key, one.namespace)
            if passed and same not in failed:
                self._containment.passed(one.boundary, one.key)
                released.append(one)
            elif same not in failed:
                kept.append(one.suspect)
        self._containment.suspect(kept)
        await self._keep([one.suspect for one in due if one.suspect is not None])
        return released

    async def _search(self, earlier: Sequence[Suspect]) -> tuple[list[Suspect], bool]:
        """Run children until one passes without the suspects that the others found. Returns these, and whether one has passed."""
        assert self._run_child is not None
        failing: list[Suspect] = []
        for _ in range(MOST_CHILDREN):
            end = await self._run_child((*earlier, *failing))
            if end.passed:
                log.info("careful_start_completed", suspects=len(failing))
                return failing, True
            suspect = end.suspect
            if suspect is None:
                log.error("careful_start_inconclusive", reason=end.how)
                return failing, False
            alike = [s for s in (*earlier, *failing) if _at(s) == _at(suspect)]
            if suspect.namespace and len(alike) >= TOGETHER - 1:
                suspect = replace(suspect, key="", ref=f"namespace {suspect.namespace}")
            log.error(
                "suspect_found", boundary=str(suspect.boundary), unit=suspect.ref, how=end.how
            )
            if suspect in earlier or suspect in failing:
                return failing, False  # it was left out, so something else is at fault
            failing.append(suspect)
            self._containment.suspect((suspect,))
        log.error("careful_start_inconclusive", reason=f"{MOST_CHILDREN} child processes ended")
        return failing, False

    def _set_aside(self, suspects: Sequence[Suspect]) -> None:
        known = self._known()
        self._containment.suspect([one for one in suspects if one not in known])

    def _known(self) -> list[Suspect]:
        return [one.suspect for one in self._containment.suspects() if one.suspect is not None]

    async def _keep(self, tried: Sequence[Suspect] = ()) -> None:
        """Write the suspects, and keep those that another process has found. ``tried``: of which this one has decided."""
        try:
            found = await self._store.suspects()
            self._set_aside([one for one in found if one not in tried])
            await self._store.keep_suspects(self._known())
        except StoreUnavailable as error:
            log.warning("suspects_not_written", error=str(error))


def _at(suspect: Suspect) -> tuple[str, str]:
    return suspect.boundary, suspect.namespace
