"""Units of input that an unexpected error concerns, set aside alone, so that one object of one user stops nothing else.

A *unit* is the smallest part of the input that the controller handles by itself at a *boundary*: an object of a watch, a workload in
an observation, a gang in a plan, a periodic task. The code at a boundary computes first and applies the result afterwards. If it
raises an error that no code expects, the unit is set aside: it is tried again after a back-off that grows, and everything else
continues. An error about the leadership or about an unknown state of the database concerns no unit, and is never contained.

A unit that is set aside is a defect of queuectl. Its record has an identifier that is the same for each error of the same code, so
that an administrator finds the trace in the log. Its objects are in memory until the leader stores them.

Some errors end the process before any code can contain them. A careful start (:mod:`queuectl.control.careful`) finds their unit in a
child process, which reports each unit that it begins (:func:`entering`). Such a unit is a *suspect*: no process handles it again before
a child has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from traceback import extract_tb
from typing import Final

from queuectl.domain.errors import NEVER_CONTAINED
from queuectl.domain.pacing import doubling
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Record

# ---- Objects of units

KEPT_OBJECTS: Final = 20
"""How many are stored, and how many wait in memory: the newest."""
KEPT_BYTES: Final = 256 * 1024
"""Of the stored text of one. A longer text is cut."""
WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of all objects that wait in memory."""


@dataclass(frozen=True, slots=True)
class SetAsideObject:
    """The description of a stored object.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds of the first failure.
        epoch: of the leader that stored it.
        boundary: where the error occurred.
        key: of the unit at its boundary. One object is stored for each unit.
        ref: the object as users know it.
        error: the identifier of the error.
        place: in the code.
        size: bytes of the object before redaction and truncation.
        truncated: the stored text is cut.
    """

    id: int
    at: float
    epoch: int
    boundary: str
    key: str
    ref: str
    error: str
    place: str
    size: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Received:
    """An object as the API server sent it. ``resource``: the plural name; ``content``: JSON."""

    resource: str
    content: bytes


Input = Received | Record


@dataclass(slots=True)
class Inputs:
    """The newest inputs of units that are set aside, by boundary and key."""

    _waiting: dict[tuple[str, str], Input] = field(default_factory=dict)
    _bytes: int = 0

    def put(self, boundary: str, key: str, source: Input) -> None:
        """Keep an input. The oldest ones beyond the limits are forgotten."""
        self.drop(boundary, key)
        self._waiting[boundary, key] = source
        self._bytes += _size(source)
        while len(self._waiting) > 1 and (
            len(self._waiting) > KEPT_OBJECTS or self._bytes > WAITING_BYTES
        ):
            self.drop(*next(iter(self._waiting)))

    def get(self, boundary: str, key: str) -> Input | None:
        """The input of a unit; None if it is not known."""
        return self._waiting.get((boundary, key))

    def drop(self, boundary: str, key: str) -> None:
        """Forget an input."""
        given = self._waiting.pop((boundary, key), None)
        if given is not None:
            self._bytes -= _size(given)


def _size(source: Input) -> int:
    """Bytes that only this object holds: the copy of the cluster holds the records anyway."""
    return len(source.content) if isinstance(source, Received) else 0


# ---- Units

_PACKAGE: Final = str(Path(__file__).parents[1]) + "/"
FIRST_SECONDS: Final = 15.0
"""The first back-off of a unit. It doubles with each failure."""
LONGEST_SECONDS: Final = 1800.0
TOGETHER: Final = 3
"""Units of one namespace that fail at one place, after which further units of that namespace are not tried one by one."""
MOST_KEPT: Final = 10_000
"""Units in the record. Beyond it, the record forgets the unit that has waited longest: it is tried once more."""


class Boundary(StrEnum):
    """The kinds of units."""

    OBJECT = "object"  # an object of a watch
    RECORD = "record"  # the record of an object, in the copy of the cluster
    OBSERVATION = "observation"  # the events of a workload
    SNAPSHOT = "snapshot"  # a workload in the snapshot of a plan
    GANG = "gang"  # a gang in the planner
    COMMIT = "commit"  # a change of a workload in the database
    WRITE = "write"  # a write to the API server
    EVENT = "event"  # an Event or a status annotation
    SERIES = "series"  # the samples of a gang from the source of GPU utilization
    QUESTION = "question"  # a question to the planner
    TASK = "task"  # a periodic task of the controller


class UnitFailed(Exception):
    """Names the unit that an error concerns. The error is its cause."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class BrokenRules(Exception):
    """A plan that the verifier refuses, or that a limit of time ends. ``rules``: names of the rules."""

    def __init__(self, rules: str, message: str) -> None:
        super().__init__(message)
        self.rules = rules


Entered = Callable[[Boundary, str, str, str], None]
"""Called with the boundary, the key, the object and the namespace of a unit."""
_entered: Entered | None = None


def trace(entered: Entered | None) -> None:
    """Report each unit of this process from now on, before it is handled; None ends that."""
    global _entered
    _entered = entered


def entering(boundary: Boundary, key: str, ref: str = "", namespace: str = "") -> None:
    """Report that a unit is handled from now on, until the next one is."""
    if _entered is not None:
        _entered(boundary, key, ref, namespace)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Name the unit of an unexpected error. The error itself is raised further."""
    entering(Boundary.GANG, key)
    try:
        yield
        entering(Boundary.TASK, "plan")
    except Exception as error:
        if never_contained(error) or isinstance(error, UnitFailed):
            raise
        raise UnitFailed(key) from error


def unit_of(error: BaseException) -> str | None:
    """The unit that an error names; None if it names none."""
    return error.key if isinstance(error, UnitFailed) else None


def never_contained(error: BaseException) -> bool:
    """Whether an error concerns more than one unit: the leadership, the database, or the end of the process."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(never_contained, error.exceptions))
    return not isinstance(error, Exception) or isinstance(error, NEVER_CONTAINED)


def place_of(error: BaseException) -> str:
    """The type of an error, and the innermost function of queuectl that it left: the same for each unit with the same defect."""
    while isinstance(error, UnitFailed) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BrokenRules):
        return f"verifier: {error.rules}"
    frames = [f for f in extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGE)]
    if not frames:
        return type(error).__name__
    last = frames[-1]
    module = last.filename.removeprefix(_PACKAGE)
    return f"{type(error).__name__} in {module}:{last.name}"


def error_id(boundary: Boundary, place: str) -> str:
    """A short identifier for all errors of one place at one boundary."""
    return hashlib.sha256(f"{boundary} {place}".encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A unit that ended a process.

    Attributes:
        key: of the unit at its boundary; empty for all units of the namespace.
        ref: the object as users know it.
        namespace: of the object; empty for one without.
        how: how the process ended.
    """

    boundary: Boundary
    key: str
    ref: str
    namespace: str
    how: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """A unit that is set aside.

    Attributes:
        key: of the unit at its boundary: a uid, or a name.
        ref: the object as users know it, ``Kind/namespace/name``, or the name of the task.
        namespace: of the object; empty for one without.
        place: of the error, as :func:`place_of` returns it.
        version: of the object at the last failure; another version allows one try before the end of the back-off.
        since: unix seconds of the first failure.
        failures: in a row.
        until: unix seconds of the next try.
        suspect: it ended a process, so only a child process tries it again.
    """

    boundary: Boundary
    key: str
    ref: str
    namespace: str
    place: str
    version: object
    since: float
    failures: int
    until: float
    tried_early: bool = False
    suspect: Suspect | None = None

    @property
    def error(self) -> str:
        """The identifier of the error."""
        return error_id(self.boundary, self.place)

    @property
    def reason(self) -> Reason:
        """For its workload. It names no other object, and nothing of the error that a tenant could not know."""
        text = (
            f"an internal error of queuectl (error {self.error}) sets it aside; it delays no other gang, and queuectl tries "
            "it again"
        )
        details = {
            "error": self.error,
            "boundary": str(self.boundary),
            "retryAt": round(self.until),
        }
        return Reason(Code.INTERNAL_ERROR, text, details)


Report = Callable[[SetAside, BaseException | None], None]


def _unreported(_: SetAside, __: BaseException | None) -> None:
    """Ignores the failure."""


@dataclass(slots=True)
class _Namespace:
    """The budget of tries of one namespace at one boundary: they are as rare as those of one unit."""

    failures: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Containment:
    """The units of one process that are set aside. Not safe in several threads: use it on the event loop.

    Attributes:
        clock: unix seconds.
        report: called for each failure with the error, and with None for a unit that is set aside with others.
        revision: grows with each change of the record.
        inputs: of units, until the leader stores them.
    """

    clock: Callable[[], float]
    report: Report = _unreported
    revision: int = 0
    inputs: Inputs = field(default_factory=Inputs)
    _listener: Report = _unreported
    _units: dict[tuple[Boundary, str], SetAside] = field(default_factory=dict)
    _by_place: dict[tuple[Boundary, str, str], int] = field(default_factory=dict)
    _namespaces: dict[tuple[Boundary, str], _Namespace] = field(default_factory=dict)
    _guarded: frozenset[Boundary] = frozenset()

    def __iter__(self) -> Iterator[SetAside]:
        return iter(tuple(self._units.values()))

    @property
    def empty(self) -> bool:
        """Whether no unit is set aside."""
        return not self._units

    @contextmanager
    def unit(
        self,
        boundary: Boundary,
        key: str,
        ref: str = "",
        *,
        namespace: str = "",
        version: object = None,
    ) -> Iterator[None]:
        """Handle one unit. An unexpected error sets it aside and goes no further."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - this is the boundary
            self.failed(boundary, key, error, ref, namespace=namespace, version=version)
        else:
            self.passed(boundary, key)

    def failed(
        self,
        boundary: Boundary,
        key: str,
        error: BaseException,
        ref: str = "",
        *,
        namespace: str = "",
        version: object = None,
    ) -> SetAside:
        """Set a unit aside.

        Raises:
            BaseException: ``error``, if it is never contained.
        """
        if never_contained(error):
            raise error
        place = place_of(error)
        known = self._units.get((boundary, key))
        if known is None:
            at = (boundary, namespace, place)
            self._by_place[at] = self._by_place.get(at, 0) + 1
        found = self._put(boundary, key, ref, namespace, place, version)
        self._tell(found, error)
        return found

    def set_aside_with(
        self, failure: SetAside, units: Iterable[tuple[str, str, object]]
    ) -> list[SetAside]:
        """Set other units of its namespace aside without a try, as (key, ref, version), until its own back-off ends."""
        added = []
        for key, ref, version in units:
            one = self._put(failure.boundary, key, ref, failure.namespace, failure.place, version)
            self._tell(one, None)
            added.append(one)
        return added

    def passed(self, boundary: Boundary, key: str) -> None:
        """Forget a unit: it was handled."""
        if not self._units:
            return
        known = self._units.pop((boundary, key), None)
        if known is None:
            return
        self.revision += 1
        self.inputs.drop(boundary, key)
        at = (boundary, known.namespace, known.place)
        left = self._by_place.get(at, 0) - 1
        if left > 0:
            self._by_place[at] = left
        else:
            self._by_place.pop(at, None)

    def forget(self, key: str) -> None:
        """Forget the units of an object that does not exist."""
        if self._units:
            for boundary in Boundary:
                self.passed(boundary, key)

    def get(self, boundary: Boundary, key: str, namespace: str = "") -> SetAside | None:
        """The record of a unit, or of all units of its namespace; None if it is not set aside."""
        if not self._units:
            return None
        found = self._units.get((boundary, key))
        if found is None and namespace:
            found = self._units.get((boundary, _all_of(namespace)))
        return found

    def waits(
        self, boundary: Boundary, key: str, version: object = None, namespace: str = ""
    ) -> SetAside | None:
        """The record of a unit that is not to be tried now; None if it is.

        A unit is tried when its back-off ends. A change of its object allows one try before that, unless its namespace has used up
        its tries. This process never tries a suspect, or a unit of a namespace whose units are suspects.
        """
        record = self.get(boundary, key, namespace)
        if record is None:
            return None
        now = self.clock()
        if record.suspect is not None:
            return self._seen(record, version, now)
        budget = self._namespaces.get((boundary, record.namespace))
        if budget is not None and budget.until > now:
            return record
        if record.until <= now:
            return None
        if record.version != version and not record.tried_early:
            return None
        return record

    def due(self, boundaries: Collection[Boundary]) -> bool:
        """Whether the back-off of any unit of these boundaries has ended, so that it is to be tried."""
        if not self._units:
            return False
        now = self.clock()
        return any(
            one.boundary in boundaries
            and one.suspect is None
            and one.until <= now
            and self.waits(one.boundary, one.key) is None
            for one in self
        )

    def suspect(self, suspects: Iterable[Suspect]) -> None:
        """Set these units aside until a child process has handled them. The first try is after the longest back-off."""
        for unit in suspects:
            key, now = unit.key or _all_of(unit.namespace), self.clock()
            known = self.get(unit.boundary, key)
            record = SetAside(
                boundary=unit.boundary,
                key=key,
                ref=unit.ref,
                namespace=unit.namespace,
                place=unit.how,
                version=None,
                since=known.since if known is not None else now,
                failures=known.failures + 1 if known is not None else 1,
                until=now + LONGEST_SECONDS,
                suspect=unit,
            )
            self._units[unit.boundary, key] = record
            self._guarded |= {unit.boundary}
            self.revision += 1
            self._tell(record, None)

    def suspects(self) -> tuple[SetAside, ...]:
        """The units that ended a process."""
        return tuple(one for one in self._units.values() if one.suspect is not None)

    def guards(self, boundary: Boundary) -> bool:
        """Whether a unit of this boundary can be a suspect, so that its key is needed before it is handled."""
        return _entered is not None or boundary in self._guarded

    def _seen(self, record: SetAside, version: object, now: float) -> SetAside:
        """A suspect at a version of its object: another one than the first allows one try before the end of the back-off."""
        every = record.suspect is not None and not record.suspect.key
        if every or version is None or version == record.version or record.tried_early:
            return record
        if record.version is None:
            record = replace(record, version=version)
        else:
            record = replace(record, version=version, until=now, tried_early=True)
        self._units[record.boundary, record.key] = record
        return record

    def together(self, record: SetAside) -> bool:
        """Whether so many units of its namespace fail at its place that further ones are not tried one by one."""
        at = (record.boundary, record.namespace, record.place)
        return bool(record.namespace) and self._by_place.get(at, 0) >= TOGETHER

    def held(self, boundary: Boundary) -> Mapping[str, SetAside]:
        """The namespaces with many units that fail at one place, until their next try: one of these units for each."""
        now, held = self.clock(), {}
        for one in self._units.values():
            budget = self._namespaces.get((boundary, one.namespace))
            waits = budget is not None and budget.until > now
            if one.boundary is boundary and waits and self.together(one):
                held[one.namespace] = one
        return held

    def counts(self) -> Mapping[Boundary, int]:
        """The number of units that are set aside, by boundary."""
        counted = dict.fromkeys(Boundary, 0)
        for found in self._units.values():
            counted[found.boundary] += 1
        return counted

    @contextmanager
    def reported_to(self, listener: Report) -> Iterator[None]:
        """Report to a leader as well, as long as it leads."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = _unreported

    def _tell(self, record: SetAside, error: BaseException | None) -> None:
        self.report(record, error)
        self._listener(record, error)

    def _put(
        self, boundary: Boundary, key: str, ref: str, namespace: str, place: str, version: object
    ) -> SetAside:
        now, earlier = self.clock(), self._units.pop((boundary, key), None)
        failures = earlier.failures + 1 if earlier is not None else 1
        early = earlier is not None and now < earlier.until
        pause = _pause(failures)
        record = SetAside(
            boundary=boundary,
            key=key,
            ref=ref or (earlier.ref if earlier is not None else key),
            namespace=namespace,
            place=place,
            version=version,
            since=earlier.since if earlier is not None else now,
            failures=failures,
            until=now + pause,
            tried_early=early,
        )
        self._units[boundary, key] = record
        if namespace and (earlier is not None or self.together(record)):
            budget = self._namespaces.setdefault((boundary, namespace), _Namespace())
            if budget.until <= now:
                quiet = now - budget.until > _pause(budget.failures + 1)
                budget.failures = 1 if quiet else budget.failures + 1
                budget.until = now + _pause(budget.failures)
        if len(self._units) > MOST_KEPT:
            oldest = next(key for key, one in self._units.items() if one.suspect is None)
            self.passed(*oldest)
        self.revision += 1
        return record


def _pause(failures: int) -> float:
    """The back-off after so many failures, in seconds."""
    return doubling(FIRST_SECONDS, LONGEST_SECONDS, failures)


def _all_of(namespace: str) -> str:
    """The key of all units of a namespace."""
    return f"namespace {namespace}"
