"""Makes the simulated report in a child process, which reads the trace from the database and has limits of time and memory.

The child runs at the lowest priority, so that neither the leader nor the API waits for it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from queuectl.control.careful import memory_left
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresLeaderStore
from queuectl.domain.errors import QueuectlError
from queuectl.domain.estimates import DAY
from queuectl.domain.shadow_trace import SimulatedReport
from queuectl.domain.snapshot import Snapshot
from queuectl.shadow.simulating import simulated

_COMMAND: Final = (sys.executable, "-m", "queuectl.shadow.simulation_process")
_SECONDS: Final = 600.0
"""For each of its simulations. Together they stay within the limit of CPU time."""
_PROCESSOR_SECONDS: Final = 3600
_READ_SECONDS: Final = 300.0
_LEAST_PRIORITY: Final = 19


class SimulationFailed(QueuectlError):
    """The child process ended without a report."""


class Simulation(Protocol):
    """Makes the simulated report."""

    async def __call__(self, setting: Snapshot, now: float) -> SimulatedReport:
        """The report from the trace in the database.

        Args:
            setting: configuration and namespaces of the last observation.
            now: unix seconds.

        Raises:
            SimulationFailed: no report was made.
        """


@dataclass(frozen=True, slots=True)
class SimulationInput:
    """The values that the parent gives to its child.

    Attributes:
        database_url: of the database with the trace.
        setting: configuration and namespaces of the last observation.
        resolution: seconds between two observations.
        days: for which records are kept.
        now: unix seconds.
        memory: the limit of memory, in bytes.
        seconds: for each simulation.
    """

    database_url: str
    setting: Snapshot
    resolution: float
    days: float
    now: float
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildSimulation:
    """Makes the report in a child process; see :class:`Simulation`.

    Attributes:
        database_url: of the database with the trace.
        resolution: seconds between two observations.
        days: for which records are kept.
        seconds: for each of the simulations of the report.
        command: that runs the child.
    """

    database_url: str
    resolution: float
    days: float
    seconds: float = _SECONDS
    command: Sequence[str] = _COMMAND

    async def __call__(self, setting: Snapshot, now: float) -> SimulatedReport:
        """See :class:`Simulation`."""
        given = SimulationInput(
            self.database_url,
            setting,
            self.resolution,
            self.days,
            now,
            memory_left(),
            self.seconds,
        )
        process = await asyncio.create_subprocess_exec(
            *self.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            answer, _ = await process.communicate(pickle.dumps(given))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise SimulationFailed(f"the simulation ended with status {process.returncode}")
        try:
            return msgspec.json.decode(answer, type=SimulatedReport)
        except msgspec.MsgspecError as error:
            raise SimulationFailed(f"the simulation gave no report: {error}") from error


def run() -> None:
    """The child: from the input on standard input to the report on standard output."""
    given = pickle.load(sys.stdin.buffer)  # noqa: S301 - its parent wrote it
    assert isinstance(given, SimulationInput)
    os.nice(_LEAST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_SECONDS, _PROCESSOR_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (given.memory, given.memory))
    report = asyncio.run(_report(given))
    sys.stdout.buffer.write(msgspec.json.encode(report))


async def _report(inputs: SimulationInput) -> SimulatedReport:
    database = replace(
        DatabaseSettings.from_environment(inputs.database_url),
        read_only=True,
        statement_timeout=_READ_SECONDS,
        answer_timeout=_READ_SECONDS,
    )
    store = await PostgresLeaderStore.connect(database)
    begin = inputs.now - inputs.days * DAY
    try:
        trace = await store.shadow.trace(begin)
    finally:
        await store.close()
    if trace is None:
        raise SimulationFailed("no observation is recorded yet")
    return simulated(
        trace,
        inputs.setting,
        begin=begin,
        resolution=inputs.resolution,
        seconds=inputs.seconds,
        clock=time.monotonic,
        now=inputs.now,
    )
