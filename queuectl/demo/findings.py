"""The result of a check of the audit, and what all checks read from a step."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.demo.replay import PodRevision


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of one check.

    Attributes:
        name: the checked statement.
        numbers: its figures.
        problems: one sentence for each violation.
    """

    name: str
    numbers: str
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def opens(step: PodRevision) -> bool:
    """Whether this step removes the gates of a pod."""
    return (
        step.after is not None
        and not step.after.gated
        and (step.before is None or step.before.gated)
    )
