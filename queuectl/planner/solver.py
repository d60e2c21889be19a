"""The one interface to CP-SAT: models built row by row on the proto, limits, statuses, and stopping.

One worker, a fixed seed and deterministic time make the same bytes of the same model; the wall clock is a
safety net only, and a plan it cut is discarded. A defect (MODEL_INVALID, an exception of the native call) is an answer
of the solver, never an exception of the planner.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from math import gcd
from typing import Final

import numpy as np
from ortools.sat.python import cp_model

from queuectl.domain.snapshot import SolverLimits
from queuectl.planner.cycle_work import CycleWork, Effort

LARGEST: Final = (
    1 << 60
)  # sums beyond this may overflow inside the solver; such a model is refused, not sent
_SEED: Final = 7
# Of a model without objective most solutions are found at once and a few by luck alone (measured: 90% below 0.003, one in
# a hundred above 0.1, another one with each seed). These seeds come first, with a share of the limit each. Presolve settles
# the models that they leave open, in half the time that more of the same takes.
_SHORT: Final = ((1, 0.04), (2, 0.08), (_SEED, 0.16))
_POLL_SECONDS: Final = 0.002


class Status(Enum):
    """The result of a solve."""

    SOLVED = "solved"
    REFUTED = "refuted"  # proved: no solution
    UNKNOWN = "unknown"  # a limit ended it first: nothing is known
    DEFECT = "defect"  # the model or the solver is broken


@dataclass(frozen=True, slots=True)
class Solution:
    """One solve. ``assignment`` has one entry per variable when SOLVED; ``optimal`` is about the objective, if any."""

    status: Status
    assignment: tuple[int, ...] = ()
    optimal: bool = False
    alarm: str = ""


class StopSignal:
    """Lets another thread end a running plan at once: the current solve stops and no other starts.

    Attributes:
        turn: uid of the gang that the plan considers, or considered last before it was ended; empty before the first one.
    """

    def __init__(self) -> None:
        self.turn = ""
        self._stopped = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._running: cp_model.CpSolver | None = None

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop; returns when the last solve has ended. May be called from any thread, any number of times."""
        self._stopped.set()
        while not self._idle.wait(_POLL_SECONDS):
            with self._lock:
                solver = self._running
            if solver is not None:
                solver.stop_search()  # repeated: the native search may not have begun at the first call

    def enter(self, solver: cp_model.CpSolver) -> bool:
        """Announce a solve; False when it must not start."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._running = solver
            self._idle.clear()
            return True

    def leave(self) -> None:
        with self._lock:
            self._running = None
            self._idle.set()


_OWN: Final = threading.local()


def _blank_model() -> cp_model.CpModel:
    """An empty model; to construct one takes longer than most solves."""
    if not hasattr(_OWN, "model"):
        _OWN.model, _OWN.blank = cp_model.CpModel(), cp_model.CpModel()
    model: cp_model.CpModel = _OWN.model
    model.proto.copy_from(_OWN.blank.proto)
    return model


@dataclass(slots=True)
class Model:
    """Variables and rows of one model, kept as plain lists until it is solved.

    Rows are divided by the gcd of their coefficients (bounds rounded inwards), so bytes and millicores stay small.
    """

    bounds: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[list[int], list[int], int, int]] = field(default_factory=list)
    objective: tuple[list[int], list[int]] | None = None
    hint: list[int] | None = None
    refuted: bool = False

    def var(self, low: int, high: int) -> int:
        """New integer variable; an empty domain refutes the model."""
        self.refuted |= low > high
        self.bounds.append((low, high))
        return len(self.bounds) - 1

    def row(self, variables: Sequence[int], coeffs: Sequence[int], low: int, high: int) -> None:
        """``low <= sum(coeff * variable) <= high``."""
        if not variables:
            self.refuted |= not low <= 0 <= high
            return
        scale = gcd(*coeffs) or 1
        if scale > 1:
            coeffs = [c // scale for c in coeffs]
            low, high = -((-low) // scale), high // scale
        self.refuted |= low > high
        self.rows.append((list(variables), list(coeffs), low, high))

    def equal(self, variables: Sequence[int], coeffs: Sequence[int], total: int) -> None:
        self.row(variables, coeffs, total, total)

    def at_most(self, variables: Sequence[int], coeffs: Sequence[int], high: int) -> None:
        """``sum(coeff * variable) <= high``; left out when the bounds of the variables imply it."""
        most = sum(
            c * self.bounds[v][1 if c > 0 else 0] for v, c in zip(variables, coeffs, strict=True)
        )
        if most > high:
            least = sum(
                c * self.bounds[v][0 if c > 0 else 1]
                for v, c in zip(variables, coeffs, strict=True)
            )
            self.row(variables, coeffs, least, high)

    def minimize(self, variables: Sequence[int], coeffs: Sequence[int]) -> None:
        self.objective = (list(variables), [int(c) for c in coeffs])

    def overflow(self) -> str:
        """Which sum may overflow inside the solver, as a sentence; empty when none can."""
        sums = [(variables, coeffs) for variables, coeffs, _, _ in self.rows]
        if self.objective is not None and self.objective[0]:
            sums.append(self.objective)
        if not sums:
            return ""
        # In floating point: what is compared is far from exact, and must not overflow itself.
        largest = np.abs(np.array(self.bounds, dtype=np.float64)).max(axis=1)
        variables = np.fromiter(chain.from_iterable(v for v, _ in sums), dtype=np.int64)
        coeffs = np.fromiter(chain.from_iterable(c for _, c in sums), dtype=np.float64)
        starts = np.cumsum([0, *(len(v) for v, _ in sums[:-1])])
        reach = np.add.reduceat(np.abs(coeffs) * largest[variables], starts).max()
        return f"a row reaches {reach:.4g}, beyond {LARGEST:.4g}" if reach >= LARGEST else ""

    def build(self) -> cp_model.CpModel:
        """The solver's own form of it. The object is this thread's only one: build the next after solving this."""
        model = _blank_model()
        proto = model.proto
        add_variable = proto.variables.add
        for low, high in self.bounds:
            add_variable().domain.extend([low, high])
        add_row = proto.constraints.add
        for variables, coeffs, low, high in self.rows:
            linear = add_row().linear
            linear.vars.extend(variables)
            linear.coeffs.extend(coeffs)
            linear.domain.extend([low, high])
        if self.objective is not None:
            proto.objective.vars.extend(self.objective[0])
            proto.objective.coeffs.extend(self.objective[1])
        if self.hint is not None:
            proto.solution_hint.vars.extend(range(len(self.hint)))
            proto.solution_hint.values.extend(self.hint)
        return model


@dataclass(slots=True)
class Solver:
    """Runs models under the snapshot's limits and counts what it did.

    Attributes:
        light: even with an objective, spare what pays off in long searches only.
        brief: one short try, for questions that can be asked otherwise.
        placements: searches for a place on the nodes of the current capacity, with or without a model.
        work: of the cycle whose gangs it searches for; None for a question outside of it.
        steps: of the searches in which gangs move or leave, the long ones. A step places one gang, or adds a few variables to a model.
        cut: the wall clock or a stop ended a solve: the plan must be discarded.
        alarms: defects met, as sentences.
    """

    limits: SolverLimits
    stop: StopSignal = field(default_factory=StopSignal)
    light: bool = False
    brief: bool = False
    placements: int = 0
    work: CycleWork | None = None
    steps: int = 0
    calls: int = 0
    unknown: int = 0
    deterministic_time: float = 0.0
    cut: bool = False
    alarms: list[str] = field(default_factory=list)

    def consider(self, queue: str | None, uid: str) -> None:
        """The next work is for a pending gang of this ClusterQueue."""
        if self.work is not None:
            self.work.consider(queue, uid, self.deterministic_time, self.steps)

    def repair(self) -> None:
        """The next work is for a running gang that lost nodes."""
        if self.work is not None:
            self.work.repair(self.deterministic_time, self.steps)

    def finish(self, *, fully: bool) -> None:
        """The next work is for no gang of the queues; ``fully``: it is done whatever the gangs have cost."""
        if self.work is not None:
            self.work.finish(self.deterministic_time, self.steps, fully=fully)

    def ended(self) -> bool:
        """Whether it was stopped, or the wall clock ended a solve: its answers do not count, and no further model is built."""
        self.cut |= self.stop.stopped
        return self.cut

    @property
    def exhausted(self) -> bool:
        """Whether the gang that is considered is not searched for in this cycle, or no longer."""
        return self.work is not None and self.work.ends(self.deterministic_time, self.steps)

    @property
    def limited(self) -> bool:
        """Whether the limit of the cycle leaves less than a full search for this gang."""
        return self.work is not None and self.work.effort is not Effort.FULL

    def _took(self) -> float:
        """The deterministic time of the search for this gang; outside a cycle, of all solves."""
        if self.work is None:
            return self.deterministic_time
        return self.work.time_of_gang(self.deterministic_time)

    def solve(self, model: Model, budget: int = 0, *, completes: bool = False) -> Solution:
        """Solve without presolve first, then once with presolve and a larger limit if that was not enough.

        Without presolve a model with an objective gets one try, another one short tries with several seeds. There is one short try where the
        effort is limited, or after ``solver_time``, and none when it is exhausted, unless the model ``completes`` a solution.
        """
        if model.refuted:
            return Solution(Status.REFUTED)
        if text := model.overflow():
            return self._defect(text)
        if self.cut or (self.exhausted and not completes):
            self.unknown += 1
            return Solution(Status.UNKNOWN)
        limits = self.limits
        limit = limits.deterministic_time * limits.growth ** min(budget, limits.max_budget)
        if self.limited:
            limit = min(limit, limits.cycle_time)
        native = model.build()
        plain = model.objective is None
        runs = [(seed, limit * share, False) for seed, share in _SHORT]
        if not plain:
            runs = [(_SEED, limit, False)]
        runs.append((_SEED, limit * limits.growth, True))
        if self.brief or self.limited or self._took() >= limits.solver_time:
            runs = runs[:1]
        outcome = Solution(Status.UNKNOWN)
        for seed, most, presolve in runs:
            light = (plain or self.light) and not presolve
            outcome = self._run(native, most, seed, presolve=presolve, light=light)
            if outcome.status is not Status.UNKNOWN or self.cut:
                break
        self.unknown += outcome.status is Status.UNKNOWN
        return outcome

    def count(self, solver: Solver) -> None:
        """Add the statistics of another solver; a question it left open was asked again."""
        self.placements += solver.placements
        self.calls += solver.calls
        self.deterministic_time += solver.deterministic_time
        self.cut |= solver.cut
        self.alarms.extend(solver.alarms)

    def _run(
        self, native: cp_model.CpModel, limit: float, seed: int, *, presolve: bool, light: bool
    ) -> Solution:
        solver = cp_model.CpSolver()
        p = solver.parameters
        p.num_workers = 1
        p.random_seed = seed
        p.cp_model_presolve = presolve
        if light:
            # Without objective cuts, probing and symmetry cost more than they prove (measured: twice), and the whole LP at
            # once refutes sooner than one that grows (measured: a quarter less over 250 models of batches). With one they
            # do so below 0.02 (measured: a quarter less over 46 models of victims), and save a third of the time above.
            p.cut_level = p.cp_model_probing_level = p.symmetry_level = 0
            p.add_lp_constraints_lazily = False
        p.max_deterministic_time = limit
        p.max_time_in_seconds = self.limits.wall_seconds
        if not self.stop.enter(solver):
            self.cut = True
            return Solution(Status.UNKNOWN)
        try:
            status = solver.solve(native)
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            return self._defect(f"{type(error).__name__}: {error}")
        finally:
            self.stop.leave()
        self.calls += 1
        self.deterministic_time += solver.deterministic_time
        return self._read(solver, status, limit)

    def _read(
        self, solver: cp_model.CpSolver, status: cp_model.CpSolverStatus, limit: float
    ) -> Solution:
        if status == cp_model.INFEASIBLE:
            return Solution(Status.REFUTED)
        if status == cp_model.MODEL_INVALID:
            return self._defect(solver.solution_info() or "MODEL_INVALID")
        if status != cp_model.OPTIMAL:
            self.cut |= self.stop.stopped or (
                solver.wall_time >= self.limits.wall_seconds and solver.deterministic_time < limit
            )
        if status == cp_model.UNKNOWN:
            return Solution(Status.UNKNOWN)
        values = tuple(solver.response_proto.solution)
        return Solution(Status.SOLVED, values, optimal=status == cp_model.OPTIMAL)

    def _defect(self, text: str) -> Solution:
        self.alarms.append(text)
        return Solution(Status.DEFECT, alarm=text)
