"""Plans that the verifier refused, stored so that the defect can be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEPT: Final = 20
"""How many are kept: the newest."""
KEPT_BYTES: Final = 50 * 1024 * 1024
"""Of all that are kept together. A larger one is not kept at all."""


@dataclass(frozen=True, slots=True)
class RefusedPlan:
    """The description of a refused plan.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds of the snapshot.
        epoch: of the leader.
        cycle: within the epoch.
        rules: names of the rules that the plan broke, each once, sorted.
        size: bytes of the file.
    """

    id: int
    at: float
    epoch: int
    cycle: int
    rules: tuple[str, ...]
    size: int
