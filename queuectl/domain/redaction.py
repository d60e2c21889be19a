"""Redaction for one reader: the gangs of namespaces that the reader has no access to.

Reasons, obstacles and suggested fixes are sentences and plain values that can name any gang. Names of gangs in namespaces whose
workloads the reader cannot list are covered in them; numbers, and the names of the reader's own gangs, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeVar

from queuectl.domain.diagnosis import Diagnosis, Obstacle, SuggestedFix
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Reason

ANOTHER_TEAM: Final = "another team"
"""Replaces the name of a workload that the reader may not see."""

Explanation = Reason | Obstacle | SuggestedFix
"""Values about a gang that can name others."""

_T = TypeVar("_T", Reason, Obstacle, SuggestedFix)
_NAMESPACE: Final = re.compile(r"(?<![a-z0-9.-])([a-z0-9-]{1,63})/(?=[a-z0-9])")
_NAME: Final = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
_UIDS: Final = frozenset({"victims", "preemptor", "beneficiary"})
"""Details that hold uids of gangs."""


def shown_uid(name: str, uid: str) -> str | None:
    """The uid of a workload that is shown by this name; None where the name is covered."""
    return uid if name != ANOTHER_TEAM else None


@dataclass(frozen=True)
class Redactor:
    """Redacts what one reader sees of gangs.

    Attributes:
        hidden: namespaces whose gangs are not named.
        drawn: the reader has no access to some gangs, so no uid is shown that can be one of theirs.
        own: gangs, as ``namespace/name``, that are named wherever they are.
    """

    hidden: frozenset[str] = frozenset()
    drawn: bool = False
    own: Collection[str] = ()

    def name(self, ref: str) -> str:
        """A gang's ``namespace/name``, or its cover. An unknown gang has its uid here."""
        return ANOTHER_TEAM if self.drawn and "/" not in ref else self.text(ref)

    def text(self, sentence: str) -> str:
        """A sentence without the names that are covered."""
        if not self.hidden or "/" not in sentence:
            return sentence
        return self._hiding.sub(lambda m: m[0] if m[0] in self.own else ANOTHER_TEAM, sentence)

    def redacted(self, explanation: _T) -> _T:
        """The same without hidden names; the same object where it has none."""
        if not self.drawn:
            return explanation
        message, details = self.text(explanation.message), self._plain(explanation.details)
        if (message, details) == (explanation.message, explanation.details):
            return explanation
        return replace(explanation, message=message, details=details)

    def entry(self, entry: Entry) -> Entry:
        """A row of the ledger, with its reason so."""
        reason = self.redacted(entry.reason)
        return entry if reason is entry.reason else replace(entry, reason=reason)

    def line(self, line: HistoryLine) -> HistoryLine:
        """A step, with its reason so."""
        reason = self.redacted(line.reason)
        return line if reason is line.reason else replace(line, reason=reason)

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with all its sentences and values redacted."""
        conflict = map(self.redacted, diagnosis.conflict)
        fixes = map(self.redacted, diagnosis.suggested_fixes)
        return replace(diagnosis, conflict=tuple(conflict), suggested_fixes=tuple(fixes))

    def _plain(self, content: Any) -> Any:
        match content:
            case str():
                return self.text(content)
            case list() | tuple():
                return [self._plain(one) for one in content]
            case Mapping():
                return {
                    self.text(key): self._plain(one)
                    for key, one in content.items()
                    if key not in _UIDS
                }
            case _:
                return content

    @cached_property
    def _hiding(self) -> re.Pattern[str]:
        namespaces = "|".join(map(re.escape, sorted(self.hidden)))
        return re.compile(rf"(?<![a-z0-9.-])(?:{namespaces})/{_NAME}")


def redacted_for(
    namespace: str, reason: Reason, namespaces: Container[str] | None = None
) -> Reason:
    """A reason as all readers of one namespace can see it: gangs of others are not named.

    Args:
        namespace: of the readers.
        reason: of a gang of that namespace.
        namespaces: those that exist; None = not known, so that what only looks like a name, as an image does, is also hidden.
    """
    others = namespaces_in(reason) - {namespace}
    hidden = frozenset(other for other in others if namespaces is None or other in namespaces)
    return Redactor(hidden, drawn=bool(hidden)).redacted(reason)


def namespaces_in(source: Explanation | str) -> frozenset[str]:
    """Namespaces of the gangs that are named in it; other words of that form can be among them."""
    if isinstance(source, str):
        return frozenset(_NAMESPACE.findall(source))
    words = (source.message, *_strings(source.details))
    return frozenset(found for text in words if "/" in text for found in _NAMESPACE.findall(text))


def _strings(content: Any) -> Iterator[str]:
    """All text in plain values, keys included."""
    match content:
        case str():
            yield content
        case list() | tuple():
            for one in content:
                yield from _strings(one)
        case Mapping():
            for key, one in content.items():
                yield key
                yield from _strings(one)
