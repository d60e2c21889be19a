"""SIGKILLs, a stopped database, a restart of the API server, two controllers at once.

The complete matrix of steps is in tests/control/test_crash_matrix.py; here real processes die. Each test's recording is
audited: all pods of a gang start or none, no node is overcommitted, and no gang starts twice.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.demo.controller import Controller
from queuectl.demo.manifests import Document, Pods, job
from queuectl.demo.rest import ApiConnection
from queuectl.localcluster.client import get_plain
from queuectl.objects.keys import ATTEMPT_LABEL, STATUS_ANNOTATION
from tests.system.acts import ask, die, finish, outside_database
from tests.system.house import QUICK, House, Room

pytestmark = pytest.mark.system


def spec(room: Room, path: str) -> bool:
    """Whether a job is suspended, as the API server has it."""
    found = room.client.get(path)["spec"]
    return bool(found.get("runPolicy", found).get("suspend"))


def points(kind: str, room: Room) -> Iterator[tuple[str, Callable[[], object]]]:
    """Moments at which the controller is killed, in order; each waits for its moment, or for the next.

    A preemption can end in a tenth of a second, before the test observes it.
    """
    low, high = room.made
    yield "the gang is known", lambda: room.state("low")
    yield "its job is resumed", lambda: not spec(room, low)
    yield "its pods are ungated", lambda: any(not p.gated for p in room.pods("low"))
    yield "it runs", lambda: len(room.running("low")) == 4
    yield (
        "the preemptor waits for its victim",
        lambda: room.state("high") in ("Reserved", "Starting", "Running"),
    )
    yield "the victim is suspended", lambda: spec(room, low)
    yield (
        "the victim's pods are deleted",
        lambda: not [p for p in room.pods("low") if not p.terminal],
    )
    yield "the preemptor is resumed", lambda: not spec(room, high)
    yield "the preemptor runs", lambda: len(room.running("high")) == 4
    yield "the preemptor is done", lambda: room.state("high") == "Finished"
    yield "the victim is resumed again", lambda: not spec(room, low)


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_the_controller_is_killed_at_every_step(home: House, kind: str) -> None:
    with home.room(32) as room:
        room.gang(kind, "low", 4, priority_class="low")
        room.made.append(room.made[0].removesuffix("low") + "high")  # known before it exists
        for number, (what, reached) in enumerate(points(kind, room)):
            if number == 4:
                room.made.pop()
                room.gang(kind, "high", 4, priority_class="high", seconds=12)
            room.until(reached, what)
            die(room)
        again = room.until_state("low", "Running")
        assert again["attempt"] == 2
        assert again["evictions"] == 1
        starts = [line["attempt"] for line in room.history("low") if line["event"] == "Admitted"]
        assert starts == [1, 2]


def test_the_api_server_restarts_while_gangs_start(home: House) -> None:
    with home.room(128) as room:
        for i in range(6):
            room.gang("Job" if i % 2 else "PyTorchJob", f"g{i}", 2, seconds=4)
        room.until(lambda: room.pods("g0"), "the first pods appear")
        home.cluster.restart_apiserver()
        for i in range(6):
            room.until_state(f"g{i}", "Finished")
        assert {room.workload(f"g{i}")["attempt"] for i in range(6)} == {1}


@pytest.fixture
def apart(home: House) -> Iterator[tuple[House, EmbeddedServer]]:
    """The house's cluster with a controller of its own database; the house's own controller is stopped meanwhile."""
    home.controller.kill()
    with outside_database() as server:
        url = {"QUEUECTL_DATABASE_URL": server.url(), "QUEUECTL_HOLDER": "first"}
        controller = Controller.start(home.cluster, QUICK | url, replica="-a")
        try:
            controller.wait_ready()
            with ApiConnection(controller.api) as rest:
                yield House(home.cluster, controller, rest), server
        finally:
            controller.stop()
            home.controller.restart()
            home.controller.wait_ready()


def test_the_database_stops_and_starts_again(apart: tuple[House, EmbeddedServer]) -> None:
    home, server = apart
    with home.room(128) as room:
        room.job("before", Pods(2, gpus=8))
        room.until(lambda: room.running("before"), "the first gang runs")
        asyncio.run(server.stop(immediate=True))
        room.job("meanwhile", Pods(2, gpus=8), seconds=2)
        room.until(
            lambda: status(f"{home.controller.api}/api/v1/workloads") == 503, "the API answers 503"
        )
        room.until(lambda: status(f"{home.controller.metrics}/readyz") == 503, "it is not ready")
        assert len(room.running("before")) == 2, "running work is untouched"
        assert room.pods("meanwhile") == [], "nothing new is admitted"
        asyncio.run(server.start())
        room.until_state("meanwhile", "Finished")
        for pod in room.running("before"):
            finish(room, pod.name)
        room.until_state("before", "Finished")


def test_a_lost_database_is_recovered_from_the_cluster(
    apart: tuple[House, EmbeddedServer], tmp_path: Path
) -> None:
    home, server = apart
    with home.room(128) as room:
        for name in ("runs", "held", "leaves"):
            room.job(name, Pods(2, gpus=8))
            room.until_state(name, "Running")
        ask(room, "held", "hold")
        room.until_state("held", "Held")
        room.until(
            lambda: status_of(room, "held").startswith("Held: Held"), "its status annotation"
        )
        before = {pod.uid for pod in room.running("runs")}
        home.cluster.pause("kwok")
        ask(room, "leaves", "requeue")
        room.until(lambda: spec(room, room.made[2]), "it is suspended, and its pods are there")
        room.job("starts", Pods(2, gpus=8))
        room.until(lambda: [p for p in room.pods("starts") if p.node], "its pods get their nodes")
        exported = CliRunner().invoke(app, ["config", "export", "--server", home.controller.api])
        home.controller.kill()
        room.submit(claiming("claims", room.namespace))
        asyncio.run(lose(server.url()))

        file = tmp_path / "queues.yaml"
        file.write_text(exported.stdout)
        done = recover(home.controller, file)
        assert done.returncode == 0, done.stderr
        assert "5 workloads" in done.stdout
        home.controller.restart()
        home.controller.wait_ready()
        assert (room.state("held"), room.state("leaves")) == ("Held", "Evicting")
        home.cluster.resume("kwok")
        room.until(lambda: len(room.running("starts")) == 2, "what started is whole")
        room.until_state("leaves", "Running")
        room.until_state("claims", "Running")
        attempts = {"runs": 1, "leaves": 2, "claims": 1}
        assert {name: room.workload(name)["attempt"] for name in attempts} == attempts
        assert {pod.uid for pod in room.running("runs")} == before
        assert room.pods("held") == []
        again = recover(home.controller, file)
        assert (again.returncode, "has workloads" in again.stderr) == (1, True)


def claiming(name: str, namespace: str) -> Document:
    """A new Job with the status annotation and the label of a running later attempt."""
    document = job(name, namespace, "main", Pods(2, gpus=8))
    document["metadata"].setdefault("annotations", {})[STATUS_ANNOTATION] = "Running: Running"
    document["spec"]["suspend"] = False
    template = document["spec"]["template"]
    template.setdefault("metadata", {}).setdefault("labels", {})[ATTEMPT_LABEL] = "7"
    return document


def status_of(room: Room, name: str) -> str:
    """The status annotation of a job."""
    [path] = [path for path in room.made if path.endswith(f"/{name}")]
    annotations = room.client.get(path)["metadata"].get("annotations", {})
    return str(annotations.get(STATUS_ANNOTATION, ""))


def recover(controller: Controller, file: Path) -> subprocess.CompletedProcess[str]:
    """``queuectl recover``, set up as the controller is."""
    program = [sys.executable, "-c", "from queuectl.cli.main import run; run()"]
    return subprocess.run(
        [*program, "recover", "-f", str(file)],
        env=dict(controller._environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def lose(url: str) -> None:
    """Delete everything in the database."""
    engine = make_engine(DatabaseSettings(url))
    async with engine.begin() as connection:
        await connection.execute(text("DROP SCHEMA public CASCADE"))
        await connection.execute(text("CREATE SCHEMA public"))
    await engine.dispose()


def status(url: str) -> int:
    try:
        return get_plain(url, timeout=10).status_code
    except httpx2.HTTPError:
        return 0


def test_of_two_controllers_one_acts_and_the_other_takes_over(
    apart: tuple[House, EmbeddedServer],
) -> None:
    home, server = apart
    url = {"QUEUECTL_DATABASE_URL": server.url(), "QUEUECTL_HOLDER": "second"}
    standby = Controller.start(home.cluster, QUICK | url, replica="-b")
    try:
        standby.wait_ready()
        with home.room(128) as room:
            room.job("one", Pods(2, gpus=8), seconds=1)
            room.until_state("one", "Finished")
            assert (leads(home.controller), leads(standby)) == (1.0, 0.0)
            assert writes(standby) == 0
            home.controller.kill()
            with ApiConnection(standby.api) as rest:
                house = House(home.cluster, standby, rest)
                heir = Room(house, room.namespace, room.recorder, room.made)
                heir.job("two", Pods(2, gpus=8), seconds=1)
                heir.until_state("two", "Finished")
            assert leads(standby) == 1.0
            home.controller.restart()
            home.controller.wait_ready()
            assert leads(home.controller) == 0.0
    finally:
        standby.stop()


def metric(controller: Controller, name: str) -> float:
    text = get_plain(f"{controller.metrics}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def leads(controller: Controller) -> float:
    return metric(controller, "queuectl_leader ")


def writes(controller: Controller) -> float:
    return metric(controller, "queuectl_cluster_writes_total")
