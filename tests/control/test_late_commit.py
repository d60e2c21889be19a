"""A commit that the leader has abandoned can still succeed. The leader plans nothing before the commit has ended."""

from __future__ import annotations

import asyncpg

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import gang, rig
from tests.support.postgres import lock_waiters

GATE = 4711
HOLDING = (State.STARTING, State.RUNNING, State.EVICTING)
# COMMIT waits for the gate, as for a slow disk or a lost synchronous standby. A cancellation does not end it.
SLOW_COMMIT = f"""
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock_shared({GATE});
            RETURN NULL;
        EXCEPTION WHEN query_canceled THEN
        END;
    END LOOP;
END $$;
CREATE CONSTRAINT TRIGGER wait_at_commit AFTER UPDATE ON workloads DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (new.name = 'first' AND new.state = 'Starting') EXECUTE FUNCTION wait_at_commit();
"""


async def test_a_commit_that_ends_after_it_was_abandoned_keeps_its_nodes(database_url: str) -> None:
    async with rig(database_url, 1, answer_timeout=2.0) as world:
        filler = world.cluster.submit(gang("Job", "filler", 1))
        await world.until_state(filler, State.RUNNING)
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_entry(
            first, lambda e: e.reason.code is Code.WAITING_FOR_QUOTA, "waits for the only node"
        )
        gate = await asyncpg.connect(database_url)
        await gate.execute(SLOW_COMMIT)
        await gate.execute(f"SELECT pg_advisory_lock({GATE})")

        async def stalled(sessions: int) -> bool:
            return await lock_waiters(gate) >= sessions

        world.cluster.finish(filler)
        await world.until(lambda: stalled(1), "the start of the first is being committed")
        second = world.cluster.submit(gang("Job", "second", 1, "high"))
        await world.until(lambda: stalled(2), "the leader has abandoned that commit and continues")
        await gate.close()

        async def started() -> bool:
            entries = (await world.store.load()).entries
            held = [e.ref for e in entries if e.state in HOLDING and e.placement]
            assert len(held) <= 1, f"one node, held at once by {held}"
            return any(e.uid == second and e.state is State.RUNNING for e in entries)

        await world.until(started, "the second runs, having preempted the first")
