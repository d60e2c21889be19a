"""Pins: a pod is pinned to its node by the node's name in its required node affinity, as the pods of DaemonSets are.

kube-scheduler then examines this node only, and no label of the node matters. The terms of a node affinity are ORed, and the API server
allows only additions to each term of a gated pod. The pin is therefore the last field requirement of each term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from queuectl.domain.fleet import FIELD_NAME, Requirement, SelectorTerm
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.cached import CachedReader
from queuectl.objects.kubernetes.wire import NodeAffinity, SelectorRequirement

Terms: TypeAlias = tuple[SelectorTerm, ...]
"""Required node affinity. An empty term matches no node."""

LARGEST_AFFINITY: Final = 2**16
"""Characters of the required node affinity of one pod. The write that starts a pod repeats them, and a gang can have thousands of pods."""
_BESIDE_TEXT: Final = 32  # characters of a requirement or a term apart from its key and values

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def pin_in(affinity: NodeAffinity | None) -> str | None:
    """The node to which each term limits a pod by its last field requirement; None if they do not."""
    required = affinity.required if affinity is not None else None
    pins = set()
    for term in (required and required.node_selector_terms) or ():
        last = term.match_fields[-1] if term.match_fields else None
        if last is not None and last.key == FIELD_NAME and last.operator == "In" and last.values:
            pins.add(last.values[0])
        elif last is not None or term.match_expressions:
            return None
    return pins.pop() if len(pins) == 1 else None


def check_size(affinity: NodeAffinity) -> None:
    """Raise RequestError if pods with this affinity cannot be pinned: it is larger than :data:`LARGEST_AFFINITY`, without a pin in it."""
    pin = pin_in(affinity)
    of_pin = _BESIDE_TEXT + len(FIELD_NAME) + len(pin) if pin is not None else 0
    size = 0
    for term in (affinity.required and affinity.required.node_selector_terms) or ():
        size += _BESIDE_TEXT
        for one in (*(term.match_expressions or ()), *(term.match_fields or ())):
            size += _BESIDE_TEXT + len(one.key) + sum(map(len, one.values or ()))
        size -= of_pin if term.match_fields else 0
    if size > LARGEST_AFFINITY:
        what = f"affinity.nodeAffinity.{REQUIRED}: has about {size:,} characters"
        raise RequestError(f"{what}; at most {LARGEST_AFFINITY:,} can be pinned", unsupported=True)


def _unchecked_terms(affinity: NodeAffinity) -> Terms | None:
    check_size(affinity)
    if affinity.required is None:
        return None
    return tuple(
        SelectorTerm(
            (
                *(_unchecked(one, field=False) for one in term.match_expressions or ()),
                *(_unchecked(one, field=True) for one in term.match_fields or ()),
            )
        )
        for term in affinity.required.node_selector_terms or ()
    )


def _unchecked(requirement: SelectorRequirement, *, field: bool) -> Requirement:
    alternatives = tuple(requirement.values or ())
    return Requirement(requirement.key, requirement.operator, alternatives, field)


unchecked_terms: Final = CachedReader[NodeAffinity, Terms | None](_unchecked_terms)
"""The terms of a pod as they are, to add a pin to them. The API server accepts some that kube-scheduler refuses, such as ``Gt`` without a
number. The pods of a gang share them."""


def pinned(terms: Terms | None, node: str) -> Terms:
    """Terms that also require this node."""
    pin = Requirement(FIELD_NAME, "In", (node,), field=True)
    if terms is None:
        return (SelectorTerm((pin,)),)
    return tuple(
        replace(term, requirements=(*term.requirements, pin)) if term.requirements else term
        for term in terms
    )


def own_pin(terms: Terms | None) -> str | None:
    """The node to which the terms of a pod that is not pinned limit it as a pin does; None if they do not.

    The pin of such a pod repeats it, also where kube-scheduler selects the node: :func:`unpinned` would otherwise remove the pod's own.
    """
    last = {term.requirements[-1] for term in terms or () if term.requirements}
    only = last.pop() if len(last) == 1 else None
    if only is None or not only.field or only.operator != "In" or not only.values:
        return None
    return only.values[0]


def unpinned(terms: Terms | None, node: str) -> Terms | None:
    """The terms of a pod before it was pinned to this node; None if it had no required node affinity."""
    pin = Requirement(FIELD_NAME, "In", (node,), field=True)
    if terms is None or not all(
        pin in term.requirements[-1:] for term in terms if term.requirements
    ):
        return terms
    if terms == pinned(None, node):
        return None
    return tuple(replace(term, requirements=term.requirements[:-1]) for term in terms)


def write_required(terms: Iterable[SelectorTerm]) -> dict[str, Any]:
    """An ``affinity`` that requires these terms."""
    required = {"nodeSelectorTerms": [_term(term) for term in terms]}
    return {"nodeAffinity": {REQUIRED: required}}


def _term(term: SelectorTerm) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, requirements in (
        ("matchExpressions", [r for r in term.requirements if not r.field]),
        ("matchFields", [r for r in term.requirements if r.field]),
    ):
        if requirements:
            written[name] = list(map(_requirement, requirements))
    return written


def _requirement(requirement: Requirement) -> dict[str, Any]:
    key = FIELD_NAME if requirement.field else requirement.key
    written: dict[str, Any] = {"key": key, "operator": requirement.operator}
    if requirement.values:
        written["values"] = list(requirement.values)
    return written
