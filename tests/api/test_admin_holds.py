"""Submitters of a namespace cannot start workloads that an admin has held or deactivated."""

from __future__ import annotations

import pytest

from queuectl.control.leader.commands import carry_out
from queuectl.db.ports import Commit
from queuectl.domain.commands import Action, Command
from queuectl.domain.containment import Containment
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry, State
from queuectl.domain.rules import Rules
from queuectl.state.ledger import Ledger
from tests.api.conftest import commit
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import job, live_through
from tests.doubles.store import MemoryStore

SUBMITTER = "of-the-submitter"
OWN = [
    Right("get", "workloads", "team-a"),
    *(
        Right("create", f"workloads/{action}", "team-a")
        for action in (Action.HOLD, Action.RELEASE, Action.DEACTIVATE, Action.ACTIVATE)
    ),
]


async def obeyed(store: MemoryStore) -> Entry:
    """Executes the commands, as the leader does; returns the workload after that."""
    while waiting := await store.commands():
        entries = list(store.database.entries.values())
        changes, answers = carry_out(
            waiting, Ledger(entries), (), 9.0, Rules(), lambda *_: None, Containment(lambda: 9.0)
        )
        epoch = await store.take_over("test", 0)
        await store.commit(Commit(changes, answers=answers), epoch=epoch, cycle=1)
    (entry,) = store.database.entries.values()
    return entry


@pytest.mark.parametrize(
    ("by", "first", "second", "allowed"),
    [
        (ADMIN, Action.HOLD, Action.RELEASE, False),
        (ADMIN, Action.HOLD, Action.DEACTIVATE, False),  # activate would release it
        (ADMIN, Action.DEACTIVATE, Action.ACTIVATE, False),
        (SUBMITTER, Action.HOLD, Action.RELEASE, True),
        (SUBMITTER, Action.DEACTIVATE, Action.ACTIVATE, True),
    ],
)
async def test_only_an_admin_reverts_the_command_of_an_admin(
    memory: MemoryStore, by: str, first: Action, second: Action, allowed: bool
) -> None:
    access = people()
    access.know(SUBMITTER, "submitter", *OWN)
    app = signed_app(memory, access)
    await commit(memory, live_through(job("own")))
    path = "/api/v1/workloads/uid-job-own"
    async with asking(app, by) as client:
        assert (await client.post(f"{path}/{first}")).status_code == 202
    # Requested before the leader has executed the first: the leader refuses the second.
    locked = await obeyed(memory)
    async with asking(app, SUBMITTER) as client:
        answer = await client.post(f"{path}/{second}")
    assert answer.status_code == (202 if allowed else 403), answer.text
    if not allowed:
        assert "an administrator has" in answer.json()["detail"]
        assert f"create workloads/{second} in all namespaces" in answer.json()["detail"]
        assert (await obeyed(memory)).state is locked.state
        async with asking(app, ADMIN) as client:
            assert (await client.post(f"{path}/{second}")).status_code == 202
    assert (await obeyed(memory)).state is not locked.state or second is Action.DEACTIVATE


async def test_a_concurrent_release_is_refused_too(
    memory: MemoryStore,
) -> None:
    access = people()
    access.know(SUBMITTER, "submitter", *OWN)
    app = signed_app(memory, access)
    await commit(memory, live_through(job("own")))
    path = "/api/v1/workloads/uid-job-own"
    async with asking(app, ADMIN) as admin, asking(app, SUBMITTER) as submitter:
        assert (await admin.post(f"{path}/hold")).status_code == 202
        assert (await submitter.post(f"{path}/release")).status_code == 202
    assert (await obeyed(memory)).state is State.HELD
    refused = await memory.command(2)
    assert isinstance(refused, Command)
    assert "an administrator has held team-a/own" in (refused.outcome or "")
