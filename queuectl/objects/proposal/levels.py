"""The levels of a Topology for some nodes: labels that all nodes have, and whose domains are inside one another.

The checks read the nodes alone. A label is no level if a node lacks it, if all nodes have one value, if each node has a value of its own,
or if one of its domains has nodes in two domains of a coarser level. Of two labels with the same domains, one is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.words import counted
from queuectl.objects.proposal.labels import NETWORKS, REGION, ZONE, place_rank

_NAMED: Final = 3  # nodes in one sentence


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels for some nodes.

    Attributes:
        labels: from coarse to fine; the last one is the host name.
        domains: the number of domains, for each level.
        left_out: why other keys of places are no levels, a sentence for each.
    """

    labels: tuple[str, ...]
    domains: tuple[int, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Label:
    """A label as a possible level.

    Attributes:
        values: of each node, in the order of the nodes.
        family: labels of one family have a known order.
        rank: in its family, coarse labels first.
    """

    key: str
    values: tuple[str, ...]
    family: int
    rank: int


_GENERAL: Final = -1  # family of region and zone, the coarsest labels
_UNKNOWN: Final = len(NETWORKS)  # the family of all other keys


def propose_levels(nodes: Sequence[Node]) -> Levels:
    """The levels for these nodes. At least one node."""
    chain: list[_Label] = []
    left_out: list[str] = []
    for key, family, rank in _candidates(nodes):
        values = tuple(node.labels.get(key, "") for node in nodes)
        label = _Label(key, values, family, rank)
        reason = _unusable(label, nodes) or _conflict(label, chain)
        if reason is None:
            at = sum(_is_inside(label.values, other.values) for other in chain)
            chain.insert(at, label)
        else:
            left_out.append(f"{key}: {reason}")
    labels = (*(label.key for label in chain), HOSTNAME)
    domains = (*(len(set(label.values)) for label in chain), len(nodes))
    return Levels(labels, domains, tuple(left_out))


def _candidates(nodes: Sequence[Node]) -> Iterator[tuple[str, int, int]]:
    """Labels of places with their family and rank, those first that are preferred."""
    present = {key for node in nodes for key in node.labels}
    known = set()
    for family, keys in enumerate(NETWORKS):
        for rank, key in enumerate(keys):
            known.add(key)
            if key in present:
                yield key, family, rank
    sites = [(place, key) for key in present - known if (place := place_rank(key)) is not None]
    for place, key in sorted(sites):
        yield key, _UNKNOWN, place
    for rank, key in ((1, ZONE), (0, REGION)):
        if key in present:
            yield key, _GENERAL, rank


def _unusable(label: _Label, nodes: Sequence[Node]) -> str | None:
    """The reason why the label is no level for these nodes, whatever the other labels are."""
    lacking = [n.name for n, value in zip(nodes, label.values, strict=True) if not value]
    if lacking:
        more = "" if len(lacking) <= _NAMED else ", …"
        named = ", ".join(lacking[:_NAMED]) + more
        return f"{len(lacking)} of {counted(len(nodes), 'node')} lack it ({named})"
    domains = len(set(label.values))
    if domains == 1:
        return f"all nodes have the value {label.values[0]}"
    if domains == len(nodes):
        return f"each node has a value of its own, as {HOSTNAME} has"
    return None


def _conflict(label: _Label, chain: Sequence[_Label]) -> str | None:
    """The reason why the label and one of the chosen ones are not both levels."""
    for other in chain:
        inside, around = (
            _is_inside(label.values, other.values),
            _is_inside(other.values, label.values),
        )
        if inside and around:
            return f"it has the same domains as {other.key}"
        finer, coarser = (
            (label, other) if _is_finer(label, other, inside=inside) else (other, label)
        )
        if not _is_inside(finer.values, coarser.values):
            domain, places = _divided(finer.values, coarser.values)
            where = " and ".join(places)
            return f"{finer.key} {domain} has nodes in {coarser.key} {where}"
    return None


def _is_finer(label: _Label, compared: _Label, *, inside: bool) -> bool:
    """Whether the label must be the finer one of the two. Where no order is known, the one with more domains is finer."""
    if label.family == compared.family and label.family != _UNKNOWN:
        return label.rank > compared.rank
    if _GENERAL in (label.family, compared.family):
        return compared.family == _GENERAL
    return inside or len(set(label.values)) > len(set(compared.values))


def _is_inside(finer: Sequence[str], coarser: Sequence[str]) -> bool:
    """Whether each domain of one label is inside one domain of the other."""
    return len(set(zip(finer, coarser, strict=True))) == len(set(finer))


def _divided(finer: Sequence[str], coarser: Sequence[str]) -> tuple[str, list[str]]:
    """A domain with nodes in two domains of the other label, and these."""
    found = defaultdict[str, set[str]](set)
    for value, place in zip(finer, coarser, strict=True):
        found[value].add(place)
    domain = min(value for value, places in found.items() if len(places) > 1)
    return domain, sorted(found[domain])[:2]
