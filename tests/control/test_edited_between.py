"""The configuration changes between snapshot and commit. A gang starts only if the newest configuration permits it, and then by this plan."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.ledger import Document, State
from queuectl.domain.plan import Plan
from queuectl.domain.queries import DocumentKey
from queuectl.domain.snapshot import Snapshot
from queuectl.objects import keys
from queuectl.planner import plan
from tests.control.rig import Rig, gang, rig

CALM = "calm"


def queue(name: str, gpus: int = 8, **spec: object) -> Document:
    amounts: dict[str, int | str] = {"nvidia.com/gpu": gpus, "cpu": "1k", "memory": "1Pi"}
    document = m.cluster_queue(name, "gpu", {**amounts, "pods": 1000})
    return document | {"spec": {**document["spec"], **spec}}


def local(name: str, target: str = "", **spec: object) -> Document:
    document = m.local_queue("default", name, target or name)
    return document | {"spec": {**document["spec"], **spec}}


def gone(kind: str, name: str) -> DocumentKey:
    return DocumentKey(kind, "default" if kind == "LocalQueue" else "", name)


EDITS: dict[str, Document | DocumentKey] = {
    "without-quota": queue("without-quota", 0),
    "stopped": queue("stopped", stopPolicy="Hold"),
    "other-namespaces": queue(
        "other-namespaces", namespaceSelector={"matchLabels": {"team": "none"}}
    ),
    "checked": queue("checked", admissionChecks=["unknown"]),
    "deleted": gone("ClusterQueue", "deleted"),
    "local-deleted": gone("LocalQueue", "local-deleted"),
    "local-stopped": local("local-stopped", stopPolicy="Hold"),
    "local-moved": local("local-moved", "empty"),
}
"""By the name of a gang and of its queues: an edit after which the gang cannot start."""


@dataclass
class Edited:
    """Edits the configuration after each plan, before its commit.

    Attributes:
        starts: in how many plans each gang starts, by name.
        plans: how many there were.
        last: the number of the last one in which a gang starts.
    """

    world: Rig
    edit: Callable[[Sequence[str]], Coroutine[Any, Any, None]]
    starts: Counter[str] = field(default_factory=Counter)
    plans: int = 0
    last: int = 0

    def planned_again(self) -> bool:
        """Whether a plan has followed the last start."""
        return self.plans > self.last

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = asyncio.get_running_loop()

        def edited_meanwhile(snapshot: Snapshot, *rest: Any) -> Plan:
            made = plan(snapshot, *rest)
            names = {p.workload.uid: p.workload.name for p in snapshot.pending}
            started = [names[a.uid] for a in made.admitted]
            self.starts.update(started)
            self.plans += 1
            self.last = self.plans if started else self.last
            asyncio.run_coroutine_threadsafe(self.edit(started), here).result()
            return made

        monkeypatch.setattr("queuectl.control.checked_plan.plan", edited_meanwhile)


async def apply(world: Rig, edit: Document | DocumentKey) -> None:
    if isinstance(edit, DocumentKey):
        await world.store.delete_config(edit)
    else:
        await world.store.put_config(edit)


def submit(world: Rig, name: str) -> str:
    document = gang("Job", name, 1)
    document["metadata"]["labels"][keys.QUEUE_LABEL] = name
    return world.cluster.submit(document)


async def test_a_gang_starts_by_its_first_plan_although_an_edit_meets_each(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits of quota go on without a pause, including edits of its own queue that leave enough."""
    async with rig(database_url, 2) as world:
        for document in (queue(CALM), local(CALM), queue("busy")):
            await world.store.put_config(document)

        async def edit(_: Sequence[str]) -> None:
            more = 8 + edited.plans % 2
            await world.store.put_config(queue("busy", more))
            await world.store.put_config(queue(CALM, more))

        edited = Edited(world, edit)
        edited.install(monkeypatch)
        uid = submit(world, CALM)
        await world.until_state(uid, State.RUNNING)
        assert edited.starts == {CALM: 1}


async def test_an_edit_between_plan_and_commit_is_not_violated_and_stops_no_other_queue(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, len(EDITS) + 1) as world:
        for name in (*EDITS, CALM):
            await world.store.put_config(queue(name))
            await world.store.put_config(local(name))
        await world.store.put_config(queue("empty", 0))

        async def edit(started: Sequence[str]) -> None:
            for name in started:
                if edited.starts[name] == 1 and name in EDITS:
                    await apply(world, EDITS[name])

        edited = Edited(world, edit)
        edited.install(monkeypatch)
        uids = {name: submit(world, name) for name in (*EDITS, CALM)}
        await world.until_state(uids.pop(CALM), State.RUNNING)
        await world.until(
            lambda: all(edited.starts[name] for name in EDITS), "each gang was to start once"
        )
        await world.until(edited.planned_again, "the newest configuration is planned")
        assert edited.starts == dict.fromkeys((*EDITS, CALM), 1)
        entries = {name: await world.store.get_workload(uid) for name, uid in uids.items()}
        tried = {name for name, entry in entries.items() if entry is None or entry.attempt}
        assert tried == set()
