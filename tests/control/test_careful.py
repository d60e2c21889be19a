"""An input that ends the process, before any code can contain it, is found in a child process and set aside; the others start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from queuectl.control import careful
from queuectl.control.careful import UNKNOWN_ENDS, ChildEnd, ChildProcess
from queuectl.db.engine import DatabaseSettings
from queuectl.domain import containment
from queuectl.domain.containment import Boundary, Suspect
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.localcluster.nodes import DRIVER, device_class, gpus, pool
from tests.control.careful_child import POISON, save
from tests.control.process import running, until
from tests.control.rig import QUICK, configuration, gang, nodes
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore
from tests.system.claims import devices, request, template, using

pytestmark = pytest.mark.sets_aside

SILENCE = 4.0
MEMORY = 1 << 30
STARTED = (State.STARTING, State.RUNNING)


class World:
    """A cluster with two gangs, and a database in which processes have ended for an unknown reason."""

    def __init__(self, url: str, store: PostgresStore, file: Path) -> None:
        self.url = url
        self.store = store
        self._file = file
        self.cluster = FakeCluster(nodes(2))
        self.poison = self.cluster.submit(gang("Job", POISON, 1))
        self.fine = self.cluster.submit(gang("Job", "fine", 1))

    def child(self, boundary: str, error: str, silence: float = 90.0) -> ChildProcess:
        """A child that an object at a boundary ends."""
        save(self.cluster, self._file)
        command = ("-m", "tests.control.careful_child", str(self._file), boundary, error)
        return ChildProcess(self.url, silence, memory=MEMORY, command=(sys.executable, *command))

    async def started(self, uid: str) -> bool:
        entry = await self.store.get_workload(uid)
        return entry is not None and entry.state in STARTED


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    for document in configuration(16):
        await store.put_config(document)
    for _ in range(UNKNOWN_ENDS):
        await store.begin_run(QUICK.holder)
    yield World(database_url, store, tmp_path / "cluster")
    await store.close()


@pytest.mark.parametrize(
    ("boundary", "error", "how", "at"),
    [
        ("object", "crash", "SIGSEGV", Boundary.OBJECT),
        # A child takes five seconds of CPU time.
        pytest.param(
            *("record", "fill", "out of memory", Boundary.RECORD), marks=pytest.mark.faults
        ),
        pytest.param(
            *("object", "hang", f"no progress for {SILENCE:g} s", Boundary.OBJECT),
            marks=pytest.mark.faults,
        ),
    ],
)
async def test_a_child_shows_the_unit_that_ends_it(
    world: World, boundary: str, error: str, how: str, at: Boundary
) -> None:
    end = await world.child(boundary, error, SILENCE if error == "hang" else 90.0)(())
    assert not end.passed
    assert end.how == how
    assert end.suspect is not None
    assert (end.suspect.boundary, end.suspect.key) == (at, world.poison)
    assert end.suspect.ref.endswith(f"/default/{POISON}")
    assert end.suspect.namespace == "default"
    assert end.suspect.how == f"ended the process: {how}"


@pytest.mark.faults
async def test_a_child_shows_the_gang_whose_expression_ends_it(world: World) -> None:
    server = world.cluster.server
    server.create("deviceclasses", device_class())
    for node in ("n0", "n1"):
        for one in pool(node, gpus(8, "H100")):
            server.create("resourceslices", one)
    uids = {}
    for name, product in (("first", "H100"), ("second", POISON)):
        chosen = [
            {"cel": {"expression": f"device.attributes['{DRIVER}'].productName == '{product}'"}}
        ]
        asked = devices(request(selectors=chosen))
        server.create("resourceclaimtemplates", template(product.lower(), "default", asked))
        document = gang("Job", name, 1)
        pod = document["spec"]["template"]
        pod["spec"] = using(pod["spec"], product.lower())
        uids[name] = world.cluster.submit(document)
    end = await world.child("claim", "crash")(())
    assert end.suspect is not None
    assert (end.suspect.boundary, end.suspect.key) == (Boundary.OBSERVATION, uids["second"])
    assert end.how == "SIGSEGV"


@pytest.mark.faults
async def test_a_careful_start_sets_the_unit_aside_and_another_gang_starts(world: World) -> None:
    run_child = world.child("gang", "crash")
    async with running(world.url, world.cluster, QUICK, run_child) as supervisor:
        await until(lambda: world.started(world.fine), "the other gang starts")
        assert not supervisor.blockers()
        (found,) = supervisor.containment.suspects()
        assert found.key == world.poison
        assert await world.store.suspects() == (found.suspect,)
        entry = await world.store.get_workload(world.poison)
        assert entry is not None
        assert (entry.state, entry.reason.code) == (State.PENDING, Code.INTERNAL_ERROR)
    assert await world.store.unknown_ends(0.0) == (), "the careful start has covered them"


async def test_a_process_starts_at_once_without_the_suspects_that_another_has_found(
    world: World,
) -> None:
    found = Suspect(Boundary.OBJECT, world.poison, f"jobs/default/{POISON}", "default", "SIGSEGV")
    await world.store.keep_suspects([found])
    async with running(world.url, world.cluster, QUICK) as supervisor:
        await until(lambda: world.started(world.fine), "the other gang starts")
        assert [one.suspect for one in supervisor.containment.suspects()] == [found]
        assert await world.store.get_workload(world.poison) is None


async def test_a_suspect_is_decoded_again_after_a_child_has_passed_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "LONGEST_SECONDS", 0.1)
    monkeypatch.setattr(careful, "CHECK_SECONDS", 0.01)
    found = Suspect(Boundary.OBJECT, world.poison, f"jobs/default/{POISON}", "default", "SIGSEGV")
    repaired = asyncio.Event()

    async def run_child(_: Sequence[Suspect]) -> ChildEnd:
        await repaired.wait()
        return ChildEnd(passed=True)

    await world.store.keep_suspects([found])
    async with running(world.url, world.cluster, QUICK, run_child) as supervisor:
        await until(lambda: world.started(world.fine), "the other gang starts")
        assert await world.store.get_workload(world.poison) is None
        repaired.set()
        await until(lambda: world.started(world.poison), "the gang starts")
        assert supervisor.containment.empty
        assert await world.store.suspects() == ()
