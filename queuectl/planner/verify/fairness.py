"""Victims by fair shares: an order of exits in which each passed a strategy, and no gang that would return by its share."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, product

from queuectl.domain.rules import FairStrategy
from queuectl.planner.verify.cohorts import CohortMember, excesses
from queuectl.planner.verify.exits import Case, Key, Use

_SPLITS = 512  # splits between the two strategies that are tried; beyond it the plan is accepted


def _share(case: Case, member: CohortMember, use: Use) -> tuple[bool, Fraction]:
    """Kueue's dominant resource share; endless ones last."""
    assert member.parent is not None
    borrowed: dict[str, int] = {}
    lendable: dict[str, int] = {}
    for flavor, resource in case.rows:
        beyond = member.uses(use, flavor, resource) - member.quota(flavor, resource)
        borrowed[resource] = borrowed.get(resource, 0) + max(0, beyond)
        most = member.parent.most(flavor, resource)
        lendable[resource] = lendable.get(resource, 0) + most
    part = max(
        (Fraction(b, lendable[r]) for r, b in borrowed.items() if lendable[r] > 0),
        default=Fraction(0),
    )
    if not member.weight:
        return part > 0, part
    return False, part / member.weight


def _borrows_any(case: Case, member: CohortMember, use: Use) -> bool:
    """Whether a member uses more than its own of anything, contended for or not."""
    return any(member.uses(use, *row) > member.quota(*row) for row in case.rows)


def unfair(case: Case, top: CohortMember, theirs: list[str]) -> str | None:
    """Why the victims below one member of a pool shared with the preemptor may not all leave."""
    return _by_shares(case, top, theirs) or _return_within_nominal(case, theirs)


def _return_within_nominal(case: Case, theirs: list[str]) -> str | None:
    """Those of them that could return within the nominal quota of their ClusterQueue, and then take what shares do not protect."""
    most = case.with_request(case.high)
    bound = any(case.own.uses(most, *row) > case.own.quota(*row) for row in case.charges)
    back = sorted(
        v
        for v in theirs
        if case.threatens(v) and not case.stays_out(v, theirs, [case.foreign[v]], alone=bound)
    )
    return f"{back} could come back within their own" if back else None


def _by_shares(case: Case, top: CohortMember, theirs: list[str]) -> str | None:
    near = [v for v in case.victims if v not in case.foreign or not _farther(case, v, top)]
    mine = case.with_request(case.without(case.low, near))
    within = all(
        case.own.uses(case.with_request(case.low), *r) <= case.own.quota(*r)
        for r in case.charges
        if _contended(case, r)
    )
    own = next(m for m in case.path if m.parent is top.parent)
    ours = _share(case, own, mine)
    back = sorted(v for v in theirs if case.threatens(v) and _behind(case, v, theirs, top, ours))
    unfair_return = False
    for split in islice(_splits(case, theirs), _SPLITS):
        able = case.lasts(top, theirs, split, lambda m, use: _borrows_any(case, m, use))
        if able and (within or _passes(case, top, theirs, split, able, ours)):
            unfair_return = bool(split and back and not within)
            if not unfair_return:
                return None
    if unfair_return:
        return f"{back} would come back with a smaller share"
    tried = sum(1 for _ in islice(_splits(case, theirs), _SPLITS + 1))
    return None if tried > _SPLITS else f"no order of exits of {sorted(theirs)} is fair"


def _behind(
    case: Case, uid: str, theirs: list[str], top: CohortMember, ours: tuple[bool, Fraction]
) -> bool:
    """Whether a victim that is back would be on the side with the smaller share."""
    return _share(case, top, case.with_back(uid, theirs)) < ours


def _contended(case: Case, row: Key) -> bool:
    """Whether the request is short of a resource: of its quota, or perhaps of nodes that have it."""
    flavor = case.index.snapshot.config.flavors.get(row[0])
    if case.index.snapshot.fleet.nodes and flavor is not None and flavor.topology is not None:
        return True
    more = case.with_request(case.low)
    return any(excesses(case.index.members, case.low, more, [(case.queue.name, *row)]))


def _farther(case: Case, uid: str, top: CohortMember) -> bool:
    """Whether a victim meets the preemptor no lower than those below ``top`` do."""
    meets = case.below(case.foreign[uid])[-1].parent
    assert meets is not None
    assert top.parent is not None
    return case.path.index(meets) >= case.path.index(top.parent)


def _splits(case: Case, theirs: list[str]) -> Iterator[tuple[str, ...]]:
    """The victims by the last strategy."""
    strategies = case.index.snapshot.config.rules.fair_sharing
    if strategies[0] is FairStrategy.LESS_THAN_INITIAL_SHARE:
        yield tuple(theirs)
        return
    yield ()
    if len(strategies) > 1:
        queues: dict[str, list[str | None]] = {}
        for uid in theirs:
            queues.setdefault(case.foreign[uid].name, [None]).append(uid)
        for some in product(*queues.values()):
            chosen = tuple(v for v in some if v is not None)
            if chosen:
                yield chosen


def _passes(
    case: Case,
    top: CohortMember,
    theirs: list[str],
    late: tuple[str, ...],
    able: list[str],
    ours: tuple[bool, Fraction],
) -> bool:
    early = [v for v in theirs if v not in late]
    if early and ours > _share(case, top, case.without(case.high, early)):
        return False
    return not late or any(
        ours < _share(case, top, case.without(case.high, (w for w in theirs if w != v)))
        for v in able
    )
