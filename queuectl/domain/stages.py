"""The stages of a gang's way: for how long each attempt was pending, starting, running and stopping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queuectl.domain.ledger import State

_BEFORE_A_START: Final = frozenset(state for state in State if state.waiting)


@dataclass(frozen=True, slots=True)
class EndedStage:
    """A stage that has ended, as the history of its workload has it.

    Attributes:
        line: id of the line of history that ended it.
        attempts: starts of the workload when it ended, this one included.
        cluster_queue: of the workload as it is when the line is read; "" without one.
        state: of the stage.
        following: the state after it.
        code: of the reason of the state after it.
        since, until: its time, unix seconds.
        begun: the time at which its attempt began to wait, unix seconds.
    """

    line: int
    uid: str
    kind: str
    namespace: str
    name: str
    cluster_queue: str
    attempts: int
    state: State
    following: State
    code: str
    since: float
    until: float
    begun: float

    @property
    def attempt(self) -> int:
        """The attempt to which the stage belongs: the time before a start belongs to the attempt that starts."""
        if self.state not in _BEFORE_A_START or self.following is State.STARTING:
            return self.attempts
        return self.attempts + 1

    @property
    def ends_attempt(self) -> bool:
        """No later stage belongs to the same attempt."""
        return self.following is State.FINISHED or self.state is State.EVICTING


@dataclass(frozen=True, slots=True)
class EndedStages:
    """Stages in the order in which they ended.

    Attributes:
        upto: id of the last line of history that was read.
        stages: those that the lines ended.
    """

    upto: int
    stages: tuple[EndedStage, ...]
