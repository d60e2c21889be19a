"""Quota along the cohort tree, written as what must hold of it; the planner computes what is left instead.

Of each ClusterQueue and Cohort, for one flavor and resource: it *lends* what its lending limit allows of its own quota
together with what its members lend it; what it does not lend is used first; the rest of its use is *taken* from above. At
the top, what is used must be there; below it, what is used beyond the own quota must stay within the borrowing limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from queuectl.domain.queues import WEIGHT_UNIT, QueueConfig, ResourceGroup

Row = tuple[str, str, str]  # ClusterQueue, flavor, resource


@dataclass(eq=False)
class CohortMember:
    """A ClusterQueue or a Cohort, with those below it."""

    name: str
    groups: tuple[ResourceGroup, ...] = ()
    parent: CohortMember | None = None
    below: list[CohortMember] = field(default_factory=list)
    queue: bool = True
    weight: int = WEIGHT_UNIT
    _quota: dict[tuple[str, str], int] = field(default_factory=dict)  # once it was asked

    def stated(self, which: str, flavor: str, resource: str) -> int | None:
        """Its own nominal quota, borrowing or lending limit, None where none is stated."""
        for group in self.groups:
            for quotas in group.flavors:
                if resource in group.covered and quotas.flavor == flavor:
                    amounts: Mapping[str, int] = getattr(quotas, which)
                    return amounts.get(resource)
        return None

    def quota(self, flavor: str, resource: str) -> int:
        """Its own and what is lent to it from below."""
        known = self._quota.get((flavor, resource))
        if known is None:
            own = self.stated("nominal", flavor, resource) or 0
            known = own + sum(m.lends(flavor, resource) for m in self.below)
            self._quota[flavor, resource] = known
        return known

    def lends(self, flavor: str, resource: str) -> int:
        quota, limit = self.quota(flavor, resource), self.stated("lending", flavor, resource)
        return quota if limit is None else min(quota, limit)

    def uses(self, use: Mapping[Row, int], flavor: str, resource: str) -> int:
        """Of a queue what its gangs use; of a cohort what is taken from it."""
        if self.queue:
            return use.get((self.name, flavor, resource), 0)
        return sum(m.takes(use, flavor, resource) for m in self.below)

    def takes(self, use: Mapping[Row, int], flavor: str, resource: str) -> int:
        kept = self.quota(flavor, resource) - self.lends(flavor, resource)
        return max(0, self.uses(use, flavor, resource) - kept)

    def limit(self, flavor: str, resource: str) -> int | None:
        """Most it may use; None = only those above it limit it."""
        borrowing = self.stated("borrowing", flavor, resource)
        if self.parent is not None and borrowing is None:
            return None
        return self.quota(flavor, resource) + (borrowing or 0 if self.parent is not None else 0)

    def most(self, flavor: str, resource: str) -> int:
        """Its usable quota if nothing were used."""
        own = self.limit(flavor, resource)
        if self.parent is None:
            return own or 0
        kept = self.quota(flavor, resource) - self.lends(flavor, resource)
        reachable = kept + self.parent.most(flavor, resource)
        return reachable if own is None else min(own, reachable)

    def up(self) -> Iterator[CohortMember]:
        """Itself and all above it."""
        yield self
        if self.parent is not None:
            yield from self.parent.up()

    def queues(self) -> Iterator[str]:
        """Names of the ClusterQueues at or below it."""
        if self.queue:
            yield self.name
        for member in self.below:
            yield from member.queues()


def members_of(config: QueueConfig) -> dict[str, CohortMember]:
    """ClusterQueue name to its place in the tree."""
    cohorts: dict[str, CohortMember] = {}

    def cohort(name: str) -> CohortMember:
        if name not in cohorts:
            stated = config.cohorts.get(name)
            cohorts[name] = CohortMember(name, stated.groups if stated else (), queue=False)
            cohorts[name].weight = stated.weight if stated else WEIGHT_UNIT
            if stated is not None and stated.parent is not None:
                _put_below(cohorts[name], cohort(stated.parent))
        return cohorts[name]

    for name in config.cohorts:
        cohort(name)
    queues = {}
    for name, queue in config.cluster_queues.items():
        queues[name] = CohortMember(name, queue.groups, weight=queue.weight)
        if queue.cohort is not None:
            _put_below(queues[name], cohort(queue.cohort))
    return queues


def _put_below(member: CohortMember, parent: CohortMember) -> None:
    member.parent = parent
    parent.below.append(member)


def excesses(
    members: Mapping[str, CohortMember],
    before: Mapping[Row, int],
    after: Mapping[Row, int],
    touched: Iterable[Row],
) -> Iterator[tuple[str, str]]:
    """Where a change of use of ``touched`` creates or worsens an excess: whose, and a sentence with the numbers."""
    seen: set[tuple[int, str, str]] = set()
    for queue, flavor, resource in sorted(touched):
        for member in members[queue].up():
            key = (id(member), flavor, resource)
            if key in seen:
                break  # and so is all above it
            seen.add(key)
            limit = member.limit(flavor, resource)
            if limit is None:
                continue
            used, had = (member.uses(u, flavor, resource) for u in (after, before))
            if used > limit and used > had:
                text = f"{flavor}/{resource}: {had} used, {used - had} asked, {limit} allowed"
                yield member.name, text


def add_rows(use: dict[Row, int], rows: Iterable[tuple[Row, int]], sign: int = 1) -> None:
    """Add amounts to a use of quota; with ``sign`` -1, take them off."""
    for row, amount in rows:
        use[row] = use.get(row, 0) + sign * amount
