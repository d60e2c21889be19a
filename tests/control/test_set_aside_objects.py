"""The object of a unit that is set aside is stored without secrets, and read over REST."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import ResourceFeed
from queuectl.domain.containment import KEPT_OBJECTS, Boundary, SetAsideObject
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import State
from queuectl.lifecycle import observations
from tests.control.rig import Rig, gang, rig
from tests.control.test_containment import POISON, Poison, contained
from tests.control.test_refused_plan import fetched
from tests.fuzz.replay import replayed
from tests.support.stores import PostgresStore

pytestmark = pytest.mark.sets_aside

PATH = "/api/v1/setasideobjects"
MANY = 1000
JOBS = next(one for one in watched() if one.name == "jobs")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuectl.control.leader.set_aside.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("queuectl.control.leader.set_aside._REST", 0.0)
    monkeypatch.setattr("queuectl.domain.containment.FIRST_SECONDS", 0.05)
    monkeypatch.setattr("queuectl.domain.containment.LONGEST_SECONDS", 0.2)


def unreadable(number: int = 0) -> dict[str, Any]:
    """A Job that its reader cannot decode, with a secret."""
    job: dict[str, Any] = dict(gang("Job", f"bad-{number}", 2))
    job["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(100 + number)}
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "TOKEN", "value": "hunter2"}]
    job["spec"]["parallelism"] = "many"
    return job


def received(world: Rig, *documents: dict[str, Any]) -> None:
    """Let the reader of the watch decode these objects."""
    feed = ResourceFeed(JOBS, contained(world))
    for one in documents:
        feed.events([b'{"type":"ADDED","object":%b}' % msgspec.json.encode(one)])


async def listed(world: Rig, most: int = 1) -> list[dict[str, Any]]:
    async def stored() -> bool:
        return len(await world.store.set_aside_objects()) >= most

    await world.until(stored, "it is stored")
    [answer] = await fetched(world, PATH)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def leading(database_url: str, world: Rig) -> None:
    good = world.cluster.submit(gang("Job", "good", 1))
    await world.until_state(good, State.RUNNING)


async def test_an_unreadable_object_is_stored_without_secrets(
    database_url: str, tmp_path: Path
) -> None:
    async with rig(database_url, 4) as world:
        await leading(database_url, world)
        document = unreadable()
        received(world, document)
        [item] = await listed(world)
        assert (item["boundary"], item["unit"]) == ("object", "jobs/default/bad-0")
        assert item["bytes"] == len(msgspec.json.encode(document))
        answer, missing = await fetched(world, f"{PATH}/{item['id']}", f"{PATH}/999")
        assert missing.status_code == 404
        assert "hunter2" not in answer.text
        found = answer.json()
        assert found["error"] == item["error"]
        assert found["object"]["spec"]["parallelism"] == "many"
    file = tmp_path / "set-aside-1.json"
    file.write_bytes(answer.content)
    [defect] = replayed(file)
    assert "set aside: object" in defect


async def test_the_records_of_a_workload_are_stored(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    poison.before(monkeypatch, observations.Observer, "_described", lambda _, job, config: job.name)
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", POISON, 2))
        await leading(database_url, world)
        [item] = await listed(world)
        assert (item["boundary"], item["unit"]) == ("observation", "Job/default/poison")
        [answer] = await fetched(world, f"{PATH}/{item['id']}")
        job = answer.json()["records"][0]
        assert (job["type"], job["value"]["uid"]) == ("JobRecord", uid)


async def test_of_1000_objects_the_newest_are_kept(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        await leading(database_url, world)
        began = time.perf_counter()
        received(world, *map(unreadable, range(MANY)))
        took = time.perf_counter() - began
        items = await listed(world, KEPT_OBJECTS)
        assert [one["unit"] for one in items] == [
            f"jobs/default/bad-{number}" for number in reversed(range(MANY - KEPT_OBJECTS, MANY))
        ]
        print(f"{took / MANY * 1e6:.1f} µs for each object")


async def test_an_outage_of_the_database_loses_only_the_copy(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    async def refuse(self: PostgresStore, one: SetAsideObject, content: bytes) -> None:
        nonlocal tried
        tried += 1
        raise StoreUnavailable("the database does not answer")

    monkeypatch.setattr(PostgresStore, "keep_set_aside", refuse)
    with capture_logs() as logs:
        async with rig(database_url, 4) as world:
            await leading(database_url, world)
            received(world, unreadable())
            await world.until(lambda: tried > 0, "it is tried")
            again = world.cluster.submit(gang("Job", "again", 1))
            await world.until_state(again, State.RUNNING)
            assert {one.boundary for one in contained(world)} == {Boundary.OBJECT}
    assert "set_aside_object_not_stored" in {line["event"] for line in logs}


async def test_an_error_of_the_copy_stops_no_gang(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = asyncio.Event()

    def fail(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise RuntimeError("defect")

    monkeypatch.setattr("queuectl.control.leader.set_aside.pack", fail)
    async with rig(database_url, 4) as world:
        await leading(database_url, world)
        received(world, unreadable())
        await world.until(raised.is_set, "it failed")
        again = world.cluster.submit(gang("Job", "again", 1))
        await world.until_state(again, State.RUNNING)


def test_a_file_that_is_cut_cannot_be_replayed(tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    file.write_text(json.dumps({"format": "queuectl.dev/set-aside/v1", "truncated": True}))
    with pytest.raises(SystemExit, match="cut"):
        replayed(file)
