"""How an answer of the planner differs from the recorded one: byte by byte in readable lines, and by score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_RANKS: Final = ("optimal", "feasible", "undecided")
_NAMES: Final = ("uid", "victim", "podset")  # fields that identify an item of a list
_MISSING: Final = object()
_WIDTH: Final = 160  # characters of a value in a line


@dataclass(frozen=True, slots=True)
class Difference:
    """One line: where, what was recorded, and what is now; ``worse`` as the score goes."""

    where: str
    was: str
    now: str
    worse: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.was} → {self.now}"


def differences(was: Any, now: Any, where: str = "") -> Iterator[Difference]:
    """Where two plain JSON values differ; items of lists are found by their names, e.g. ``admitted[g1].placement``."""
    if was == now:
        return
    named = _by_name(was), _by_name(now)
    if named[0] is not None and named[1] is not None:
        yield from _in_mapping(named[0], named[1], where, "{}[{}]")
        if list(named[0]) != list(named[1]) and set(named[0]) == set(named[1]):
            yield _line(f"{where} (order)", list(named[0]), list(named[1]))
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        yield from _in_mapping(was, now, where, "{}.{}" if where else "{}{}")
    else:
        yield _line(where, was, now)


def _in_mapping(
    was: Mapping[str, Any], now: Mapping[str, Any], where: str, pattern: str
) -> Iterator[Difference]:
    for key in sorted(was.keys() | now.keys()):
        at = pattern.format(where, key)
        if key not in was or key not in now:
            yield _line(at, was.get(key, _MISSING), now.get(key, _MISSING))
        else:
            yield from differences(was[key], now[key], at)


def _by_name(value: Any) -> dict[str, Any] | None:
    """The objects of a list by their identifying field, or by index if that repeats; None if it is not such a list."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        return None
    for name in _NAMES:
        found = {str(one[name]): one for one in value if name in one}
        if len(found) == len(value):
            return found
    return {str(number): one for number, one in enumerate(value)}


def _line(where: str, was: Any, now: Any, *, worse: bool = False) -> Difference:
    return Difference(where, _short(was), _short(now), worse)


def _short(value: Any) -> str:
    text = "nothing" if value is _MISSING else str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def compare_scores(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """How a plan's score differs.

    It is worse when other gangs start, wait, hold leases, evict or are evicted, or with other numbers of pods; when gangs
    that start, or leases, use more domains of a level in all; when victims or moves lose more; when reason codes differ; and
    when less is proved. Fewer domains, cheaper victims and better proofs differ, and are not worse.
    """
    for part in ("evicted", "returning"):
        yield from _must_equal(part, was[part], now[part])
    yield from _no_more("uneven", len(was["uneven"]), len(now["uneven"]), was, now)
    yield from _no_more("alarms", was["alarms"], now["alarms"], was, now)
    yield from _no_more("cut", was["cut"], now["cut"], was, now)
    yield from _proofs("proof", was["proof"], now["proof"])
    for part in ("admitted", "leases"):
        yield from _placements(part, was[part], now[part])
    for uid, old, new in _both("pending", was["pending"], now["pending"]):
        if old is _MISSING or new is _MISSING:
            yield _line(f"pending[{uid}]", old, new, worse=True)
            continue
        yield from _must_equal(f"pending[{uid}].codes", old["codes"], new["codes"])
        yield from _proofs(f"pending[{uid}].proof", old["proof"], new["proof"])
    for part in ("victims", "spared", "moves"):
        yield from _losses(part, was[part], now[part])


def compare_diagnoses(
    uid: str, was: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Kinds of obstacles and remedies must be the same, and no less be proved."""
    at = f"diagnosis[{uid}]"
    for part in ("conflict", "suggested_fixes", "cut"):
        yield from _must_equal(f"{at}.{part}", was[part], now[part])
    yield from _proofs(f"{at}.proof", was["proof"], now["proof"])


def _must_equal(where: str, was: Any, now: Any) -> Iterator[Difference]:
    if was != now:
        yield _line(where, was, now, worse=True)


def _no_more(
    where: str, was: int, now: int, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Difference]:
    if now != was or old[where] != new[where]:
        yield _line(where, old[where], new[where], worse=now > was)


def _proofs(where: str, was: str, now: str) -> Iterator[Difference]:
    if was != now:
        yield _line(where, was, now, worse=_RANKS.index(now) > _RANKS.index(was))


def _both(
    part: str, was: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for uid in sorted(was.keys() | now.keys()):
        yield uid, was.get(uid, _MISSING), now.get(uid, _MISSING)


def _placements(part: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    total: dict[str, list[int]] = {}
    for uid, old, new in _both(part, was, now):
        at = f"{part}[{uid}]"
        if old is _MISSING or new is _MISSING:
            yield _line(at, old, new, worse=True)
            continue
        for side, score in enumerate((old, new)):
            for level, count in score["domains"].items():
                total.setdefault(level, [0, 0])[side] += count
        if old["domains"] != new["domains"]:
            yield _line(f"{at}.domains", old["domains"], new["domains"])
        yield from _must_equal(f"{at}.pods", old["pods"], new["pods"])
        if "repaired" in old:
            yield from _must_equal(f"{at}.repaired", old["repaired"], new["repaired"])
            yield from _proofs(f"{at}.proof", old["proof"], new["proof"])
    for level, (before, after) in sorted(total.items()):
        if before != after:
            yield _line(f"{part}: all domains of {level}", before, after, worse=after > before)


def _losses(part: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for uid, old, new in _both(part, was, now):
        at = f"{part} for {uid}"
        if old is _MISSING or new is _MISSING:
            yield _line(at, old, new, worse=True)
            continue
        if old["layers"] != new["layers"]:
            worse = new["layers"] > old["layers"]
            yield _line(f"{at}: layers", old["layers"], new["layers"], worse=worse)
        if old.get("reasons") != new.get("reasons"):
            yield _line(f"{at}: reasons", old["reasons"], new["reasons"])
        yield from _proofs(f"{at}: proof", old["proof"], new["proof"])
