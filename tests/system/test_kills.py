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
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import ControllerProcess
from queuectl.demo.scenario import Document, PodSetManifest, job
from queuectl.localcluster.client import get_plain
from queuectl.objects.keys import ATTEMPT_LABEL, STATUS_ANNOTATION
from tests.support.controllers import CheckedController
from tests.system.actions import finish, outside_database, restart_controller, run_command
from tests.system.installation import QUICK, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.faults]


def spec(workspace: Workspace, path: str) -> bool:
    """Whether a job is suspended, as the API server has it."""
    found = workspace.client.get(path)["spec"]
    return bool(found.get("runPolicy", found).get("suspend"))


def points(kind: str, workspace: Workspace) -> Iterator[tuple[str, Callable[[], object]]]:
    """Moments at which the controller is killed, in order; each waits for its moment, or for the next.

    A preemption can end in a tenth of a second, before the test observes it.
    """
    low, high = workspace.made
    yield "the gang is known", lambda: workspace.state("low")
    yield "its job is resumed", lambda: not spec(workspace, low)
    yield "its pods are ungated", lambda: any(not p.gated for p in workspace.pods("low"))
    yield "it runs", lambda: len(workspace.running("low")) == 4
    yield (
        "the preemptor waits for its victim",
        lambda: workspace.state("high") in ("Reserved", "Starting", "Running"),
    )
    yield "the victim is suspended", lambda: spec(workspace, low)
    yield (
        "the victim's pods are deleted",
        lambda: not [p for p in workspace.pods("low") if not p.terminal],
    )
    yield "the preemptor is resumed", lambda: not spec(workspace, high)
    yield "the preemptor runs", lambda: len(workspace.running("high")) == 4
    yield "the preemptor is done", lambda: workspace.state("high") == "Finished"
    yield "the victim is resumed again", lambda: not spec(workspace, low)


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_the_controller_is_killed_at_every_step(installation: Installation, kind: str) -> None:
    with installation.workspace(32) as workspace:
        workspace.gang(kind, "low", 4, priority_class="low")
        workspace.made.append(
            workspace.made[0].removesuffix("low") + "high"
        )  # known before it exists
        for number, (what, reached) in enumerate(points(kind, workspace)):
            if number == 4:
                workspace.made.pop()
                workspace.gang(kind, "high", 4, priority_class="high", seconds=12)
            workspace.until(reached, what)
            restart_controller(workspace)
        again = workspace.until_state("low", "Running")
        assert again["attempt"] == 2
        assert again["evictions"] == 1
        starts = [
            line["attempt"] for line in workspace.history("low") if line["event"] == "Admitted"
        ]
        assert starts == [1, 2]


def test_the_api_server_restarts_while_gangs_start(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        for i in range(6):
            workspace.gang("Job" if i % 2 else "PyTorchJob", f"g{i}", 2, seconds=4)
        workspace.until(lambda: workspace.pods("g0"), "the first pods appear")
        installation.cluster.restart_apiserver()
        for i in range(6):
            workspace.until_state(f"g{i}", "Finished")
        assert {workspace.workload(f"g{i}")["attempt"] for i in range(6)} == {1}


@pytest.fixture
def own_database(installation: Installation) -> Iterator[tuple[Installation, EmbeddedServer]]:
    """The cluster with a controller of its own database; the controller of the installation is stopped in the meantime."""
    installation.controller.kill()
    with outside_database() as server:
        url = {"QUEUECTL_DATABASE_URL": server.url(), "QUEUECTL_HOLDER": "first"}
        controller = CheckedController.start(installation.cluster, QUICK | url, replica="-a")
        try:
            controller.wait_ready()
            with ApiConnection(controller.api) as rest:
                yield Installation(installation.cluster, controller, rest), server
        finally:
            controller.stop()
            installation.controller.restart()
            installation.controller.wait_ready()


def test_the_database_stops_and_starts_again(
    own_database: tuple[Installation, EmbeddedServer],
) -> None:
    installation, server = own_database
    with installation.workspace(128) as workspace:
        workspace.job("before", PodSetManifest(2, gpus=8))
        workspace.until(lambda: workspace.running("before"), "the first gang runs")
        asyncio.run(server.stop(immediate=True))
        workspace.job("meanwhile", PodSetManifest(2, gpus=8), seconds=2)
        workspace.until(
            lambda: status(f"{installation.controller.api}/api/v1/workloads") == 503,
            "the API answers 503",
        )
        workspace.until(
            lambda: status(f"{installation.controller.health}/readyz") == 503, "it is not ready"
        )
        assert len(workspace.running("before")) == 2, "running work is untouched"
        assert workspace.pods("meanwhile") == [], "nothing new is admitted"
        asyncio.run(server.start())
        workspace.until_state("meanwhile", "Finished")
        for pod in workspace.running("before"):
            finish(workspace, pod.name)
        workspace.until_state("before", "Finished")


def test_a_lost_database_is_recovered_from_the_cluster(
    own_database: tuple[Installation, EmbeddedServer], tmp_path: Path
) -> None:
    installation, server = own_database
    with installation.workspace(128) as workspace:
        for name in ("runs", "held", "leaves"):
            workspace.job(name, PodSetManifest(2, gpus=8))
            workspace.until_state(name, "Running")
        run_command(workspace, "held", "hold")
        workspace.until_state("held", "Held")
        workspace.until(
            lambda: status_of(workspace, "held").startswith("Held: Held"), "its status annotation"
        )
        before = {pod.uid for pod in workspace.running("runs")}
        installation.cluster.pause("kwok")
        run_command(workspace, "leaves", "requeue")
        workspace.until(
            lambda: spec(workspace, workspace.made[2]), "it is suspended, and its pods are there"
        )
        workspace.job("starts", PodSetManifest(2, gpus=8))
        workspace.until(
            lambda: [p for p in workspace.pods("starts") if p.node], "its pods get their nodes"
        )
        exported = CliRunner().invoke(
            app, ["config", "export", "--server", installation.controller.api]
        )
        installation.controller.kill()
        workspace.submit(claiming("claims", workspace.namespace))
        asyncio.run(lose(server.url()))

        file = tmp_path / "queues.yaml"
        file.write_text(exported.stdout)
        done = recover(installation.controller, file)
        assert done.returncode == 0, done.stderr
        assert "5 workloads" in done.stdout
        installation.controller.restart()
        installation.controller.wait_ready()
        assert (workspace.state("held"), workspace.state("leaves")) == ("Held", "Evicting")
        installation.cluster.resume("kwok")
        workspace.until(lambda: len(workspace.running("starts")) == 2, "what started is whole")
        workspace.until_state("leaves", "Running")
        workspace.until_state("claims", "Running")
        attempts = {"runs": 1, "leaves": 2, "claims": 1}
        assert {name: workspace.workload(name)["attempt"] for name in attempts} == attempts
        assert {pod.uid for pod in workspace.running("runs")} == before
        assert workspace.pods("held") == []
        again = recover(installation.controller, file)
        assert (again.returncode, "has workloads" in again.stderr) == (2, True)


def claiming(name: str, namespace: str) -> Document:
    """A new Job with the status annotation and the label of a running later attempt."""
    document = job(name, namespace, "main", PodSetManifest(2, gpus=8))
    document["metadata"].setdefault("annotations", {})[STATUS_ANNOTATION] = "Running: Running"
    document["spec"]["suspend"] = False
    template = document["spec"]["template"]
    template.setdefault("metadata", {}).setdefault("labels", {})[ATTEMPT_LABEL] = "7"
    return document


def status_of(workspace: Workspace, name: str) -> str:
    """The status annotation of a job."""
    [path] = [path for path in workspace.made if path.endswith(f"/{name}")]
    annotations = workspace.client.get(path)["metadata"].get("annotations", {})
    return str(annotations.get(STATUS_ANNOTATION, ""))


def recover(controller: ControllerProcess, file: Path) -> subprocess.CompletedProcess[str]:
    """``queuectl recover``, set up as the controller is."""
    program = [sys.executable, "-c", "from queuectl.cli.main import run; run()"]
    return subprocess.run(
        [*program, "recover", "-f", str(file)],
        env=dict(controller.environment),
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
    own_database: tuple[Installation, EmbeddedServer],
) -> None:
    installation, server = own_database
    url = {"QUEUECTL_DATABASE_URL": server.url(), "QUEUECTL_HOLDER": "second"}
    standby = CheckedController.start(installation.cluster, QUICK | url, replica="-b")
    try:
        standby.wait_ready()
        with installation.workspace(128) as workspace:
            workspace.job("one", PodSetManifest(2, gpus=8), seconds=1)
            workspace.until_state("one", "Finished")
            assert (leads(installation.controller), leads(standby)) == (1.0, 0.0)
            assert writes(standby) == 0
            installation.controller.kill()
            with ApiConnection(standby.api) as rest:
                other = Installation(installation.cluster, standby, rest)
                on_standby = Workspace(
                    other, workspace.namespace, workspace.recorder, workspace.made
                )
                on_standby.job("two", PodSetManifest(2, gpus=8), seconds=1)
                on_standby.until_state("two", "Finished")
            assert leads(standby) == 1.0
            installation.controller.restart()
            installation.controller.wait_ready()
            assert leads(installation.controller) == 0.0
    finally:
        standby.stop()


def metric(controller: ControllerProcess, name: str) -> float:
    text = get_plain(f"{controller.metrics}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def leads(controller: ControllerProcess) -> float:
    return metric(controller, "queuectl_leader ")


def writes(controller: ControllerProcess) -> float:
    return metric(controller, "queuectl_cluster_writes_total")
