"""The history on a real Postgres: the lines of a workload that changes again and again are limited, and those of commands are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuectl.domain.commands import Action
from queuectl.domain.ledger import UNLISTED, Entry, State
from queuectl.state import ledger
from tests.control.rig import gang, rig


def runs_as(attempt: int) -> Callable[[Entry], bool]:
    return lambda entry: entry.attempt == attempt and entry.state is State.RUNNING


async def test_a_job_that_is_stopped_again_and_again_adds_few_lines_to_the_history(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "AT_ONCE", 5)
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 1))
        await world.until_state(uid, State.RUNNING)
        for number in range(2, 6):
            world.cluster.user_patch("Job", "default", "train", {"spec": {"suspend": True}})
            await world.until_entry(uid, runs_as(number), "runs again")
        listed = await world.store.history(uid)
        assert len(listed) <= 5
        await world.ask(uid, Action.HOLD)
        await world.until_state(uid, State.HELD)
        world.cluster.delete_job(uid)
        await world.until_state(uid, State.FINISHED)
        *before, held, last = await world.store.history(uid)
        assert tuple(before) == listed
        assert held.reason.message.startswith("held by")
        assert held.reason.details[UNLISTED] >= 12
        assert last.to_state is State.FINISHED
