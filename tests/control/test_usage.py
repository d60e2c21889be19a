"""The usage ledger of a controller that dies: its sums are those of the event history, to the second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from queuectl.domain.accounting import MILLISECONDS, UNITS, milliseconds
from queuectl.domain.ledger import State
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Code
from queuectl.domain.usage_reports import Grouping, Period, Report
from tests.control.kills import ACCOUNT
from tests.control.rig import QUICK, Rig, rig
from tests.control.test_crash_matrix import BOTH, story, survives
from tests.support.jobs import batch_job
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

GPUS = 16  # of each gang of the scenario
WAITS = (State.PENDING, State.RESERVED, State.BACKOFF)
HOLDS = (State.STARTING, State.RUNNING, State.EVICTING)
PRICED = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "queuectl": {"accounting": {"prices": [{"name": "all", "gpuHour": 3600.0}]}},
}
OFTEN = QUICK.model_copy(update={"account_seconds": 0.01})


async def history(store: PostgresStore) -> list[HistoryLine]:
    lines: list[HistoryLine] = []
    while more := await store.history(None, lines[-1].id if lines else 0, 500):
        lines += more
    return lines


def seconds(since: float, until: float) -> float:
    """The ledger counts from and to whole milliseconds."""
    return (milliseconds(until) - milliseconds(since)) / MILLISECONDS


async def expected(store: PostgresStore) -> Mapping[str, tuple[float, float]]:
    """GPU-seconds allocated and waited by uid, from the history alone."""
    sums: dict[str, defaultdict[str, float]] = {}
    last: dict[str, HistoryLine] = {}
    for line in await history(store):
        before, mine = last.get(line.uid), sums.setdefault(line.uid, defaultdict(float))
        if before is not None:
            held = "held" if before.to_state in HOLDS else "waited"
            mine[held] += seconds(before.at, line.at) * GPUS * (before.to_state in (*HOLDS, *WAITS))
        else:
            entry = await store.get_workload(line.uid)
            assert entry is not None
            mine["waited"] += seconds(entry.queued_at, line.at) * GPUS
        last[line.uid] = line
    assert {line.to_state for line in last.values()} == {State.FINISHED}
    return {uid: (found["held"], found["waited"]) for uid, found in sums.items()}


async def report(world: Rig) -> Report:
    """The report of all hours, once the usage ledger is complete."""
    end = world.clock()

    async def in_it() -> bool:
        progress = await world.store.usage.progress()
        return progress.until is not None and progress.until > end and not progress.meters

    await world.until(in_it, "the usage ledger is complete")
    period = Period.around(end - 7200, end + 7200)
    return await world.store.usage.report(period, Grouping.parse("workload"))


async def agrees(world: Rig) -> Report:
    """Check that the sums of the usage ledger are those of the history."""
    found = await report(world)
    reported = {
        row.names["uid"]: (row.amounts.allocated / UNITS, row.amounts.waited / UNITS)
        for row in found.rows
    }
    sums: dict[str, tuple[float, float]] = {}
    for row in found.rows:
        was = sums.get(row.names["uid"], (0.0, 0.0))
        sums[row.names["uid"]] = (
            was[0] + row.amounts.allocated / UNITS,
            was[1] + row.amounts.waited / UNITS,
        )
    assert reported == sums, "one row for each workload"
    wanted = await expected(world.store)
    assert sums.keys() == wanted.keys()
    for uid, amounts in wanted.items():
        assert sums[uid] == pytest.approx(amounts, abs=1e-3)
    for row in found.rows:
        assert row.amounts.cost == pytest.approx(row.amounts.allocated / UNITS), (
            "a GPU-second costs 1"
        )
    return found


async def agrees_on_losses(world: Rig) -> None:
    """Check the loss of the low gang by the preemption in the same way."""
    found = await agrees(world)
    low = next(row for row in found.rows if row.names["name"] == "low")
    recorded = [
        line.reason.details["lostGpuSeconds"]
        for line in await history(world.store)
        if line.reason.code is Code.PREEMPTED
    ]
    assert low.lost_to_others == pytest.approx(sum(recorded))
    assert low.evictions == len(recorded) == 1


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_the_ledger_agrees_with_the_history_wherever_the_controller_dies(
    postgres: TestPostgres,
) -> None:
    async def accounted(world: Rig) -> None:
        world.settings = OFTEN
        await world.store.put_config(PRICED)
        await story(world, "Job")
        await agrees_on_losses(world)

    await survives(
        postgres,
        accounted,
        sides=BOTH,
        sorts=("commits", "accounts"),
        # A controller writes an entry every 10 ms, and would do nothing else.
        counted=lambda point: point[0] != ACCOUNT or point[1] < 8,
    )


async def test_gpus_of_unmanaged_pods_are_shown(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        world.settings = OFTEN
        template = batch_job("bare", queue=None, gpus=4)["spec"]["template"]
        pod = {"metadata": {"name": "bare", "namespace": "team"}, "spec": dict(template["spec"])}
        pod["spec"]["nodeName"] = next(iter(world.cluster.server.all("nodes")))["metadata"]["name"]
        pod["status"] = {"phase": "Running"}
        world.cluster.server.create("pods", pod)

        def shown() -> bool:
            value = world.metrics.registry.get_sample_value
            return value("queuectl_unmanaged_gpus", {"namespace": "team"}) == 4.0

        await world.until(shown, "the GPUs are shown")
