"""Planned starts in the control loop, on a real Postgres: they move by the clock alone when an expected end passes."""

from __future__ import annotations

from collections.abc import Callable

from queuectl.domain.ledger import Entry, State
from tests.control.rig import configuration, gang, rig
from tests.control.test_pastuse import Clock


def planned(overruns: int) -> Callable[[Entry], bool]:
    """Whether a gang has a planned start that moved so often for a gang that ran longer than expected."""

    def so(entry: Entry) -> bool:
        return entry.planned_start is not None and entry.planned_start.overruns == overruns

    return so


async def test_an_overrun_moves_the_planned_start_and_ends_no_gang(database_url: str) -> None:
    clock = Clock()
    async with rig(database_url, 2, clock=clock) as world:
        for document in configuration(16, strategy="Backfill"):
            await world.store.put_config(document)
        expects = {"queuectl.dev/expected-duration-seconds": "100"}
        runs = world.cluster.submit(gang("Job", "runs", 2, annotations=expects))
        began = (await world.until_state(runs, State.RUNNING)).started_at
        assert began is not None
        waits = world.cluster.submit(gang("Job", "waits", 2, annotations=expects))
        first = await world.until_entry(waits, planned(0), "a planned start")
        assert first.planned_start is not None
        assert first.planned_start.at == began + 100.0
        for number in (1, 2):  # the expected run time doubles
            clock.now = began + 100.0 * 2 ** (number - 1) + 1.0
            moved = await world.until_entry(waits, planned(number), "an overrun")
            assert moved.planned_start is not None
            assert moved.planned_start.at == began + 100.0 * 2**number
        lines = await world.store.history(waits, 0, 100)
        causes = [
            line.reason.details["cause"] for line in lines if line.event == "PlannedStartMoved"
        ]
        assert causes == ["Overrun", "Overrun"]
        assert (await world.until_state(runs, State.RUNNING)).attempt == 1
        counted = {"cluster_queue": "pool", "cause": "Overrun"}
        slips = world.metrics.registry.get_sample_value(
            "queuectl_planned_start_slips_total", counted
        )
        assert slips == 2
        world.cluster.finish(runs)
        await world.until_state(waits, State.RUNNING)
