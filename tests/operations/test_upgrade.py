"""An upgrade and a rollback while gangs run, with a newer release that has a pre and a post revision."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo.controller import ControllerProcess
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import wait_until
from tests.db.test_migrate import HEAD, add
from tests.operations.servers import postgres_server
from tests.support.controllers import CheckedController
from tests.system.demo_cluster import tools
from tests.system.installation import QUICK, SECONDS, Installation, Workspace, installed
from tests.system.transcript import ROOT, Page, Shell, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]

REFUSED = "the schema has 9002_post, the second half of the upgrade to a newer release"
ROLLOUT = ("helm rollback", "kubectl -n queuectl-system rollout")
"""The controllers are processes here. tests/real has a Deployment."""


@dataclass(frozen=True)
class Release:
    """A release that is newer than this one. ``folder``: its Python path."""

    folder: Path

    def start(self, installation: Installation, server: EmbeddedServer) -> ControllerProcess:
        settings = QUICK | {
            "PYTHONPATH": str(self.folder),
            "QUEUECTL_DATABASE_URL": server.url(),
        }
        started = CheckedController.start(installation.cluster, settings, replica="-newer")
        started.wait_ready()
        return started


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """This code with two more revisions."""
    folder = tmp_path_factory.mktemp("newer")
    for name in ("queuectl", "migrations"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    add(folder / "migrations", "9001_pre", HEAD, "ALTER TABLE workloads ADD COLUMN extra text")
    remove = "ALTER TABLE workloads DROP COLUMN extra"
    add(folder / "migrations", "9002_post", "9001_pre", remove)
    return Release(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with postgres_server() as started:
        yield started


@pytest.fixture
def installation(server: EmbeddedServer) -> Iterator[Installation]:
    nodes = NodeSpec(racks_per_block=2, hosts_per_rack=2)
    with installed(nodes, {"QUEUECTL_DATABASE_URL": server.url()}) as built:
        yield built


@pytest.fixture
def typing(installation: Installation, server: EmbeddedServer) -> Iterator[Shell]:
    environment = tools(installation.cluster) | {
        "QUEUECTL_SERVER": installation.controller.api,
        "QUEUECTL_DATABASE_URL": server.url(),
        "PATH": f"{tools(installation.cluster)['PATH']}:{os.environ['PATH']}",
    }
    with shell(environment) as started:
        started.type("exec 2>&1")
        yield started


def test_gangs_continue_through_an_upgrade_and_a_rollback(
    installation: Installation, server: EmbeddedServer, newer: Release, typing: Shell
) -> None:
    back, upgrade = Page("roll-back.md", typing), Page("upgrade.md", typing)
    of_newer = f"PYTHONPATH={newer.folder}"
    with installation.workspace(32) as workspace:
        workspace.gang("Job", "train", 2)
        workspace.until_state("train", "Running")
        pods = {pod.uid for pod in workspace.running("train")}

        # The pre half, alongside the earlier release.
        assert typing.type(f"{of_newer} queuectl db upgrade --pre")[0] == 0
        started = newer.start(installation, server)
        status, printed = typing.type(f"{of_newer} queuectl db upgrade")
        assert status == 1
        assert "9002_post removes what replicas of an earlier release need" in printed
        assert installation.controller.home.name in printed

        # A rollback to the earlier release before the post half.
        back.type("queuectl db current")
        started.stop()
        workspace.gang("Job", "next", 1)
        workspace.until_state("next", "Running")

        # The upgrade again, and the post half without the earlier release.
        started = newer.start(installation, server)
        try:
            os.kill(installation.controller.pid, signal.SIGSTOP)
            after_expiry(typing, of_newer)
            upgrade.type("queuectl db status")
            upgrade.type("queuectl db upgrade")
            ends_with_a_reason(installation)
            typing.type("unset PYTHONPATH")
            back.type("queuectl db current", status=1)
            still_running(workspace, started, pods)
        finally:
            started.stop()
    for page in (back, upgrade):
        page.end(*ROLLOUT)


def after_expiry(typing: Shell, of_newer: str) -> None:
    """A frozen replica counts for a minute, as a killed one does."""
    status, printed = typing.type(f"{of_newer} queuectl db upgrade")
    assert status == 1, printed
    wait_until(lambda: typing.type(f"{of_newer} queuectl db upgrade")[0] == 0, "expiry", SECONDS)
    typing.type(f"export {of_newer}")


def ends_with_a_reason(installation: Installation) -> None:
    """The frozen replica of the earlier release ends when it continues, and no longer starts.

    The timer of a loop without progress ends it, if its heartbeat does not do so before.
    """
    controller = installation.controller
    os.kill(controller.pid, signal.SIGCONT)
    wait_until(lambda: not controller.running, "the end of the frozen replica", SECONDS)
    size = controller.log.stat().st_size
    controller.restart()
    wait_until(lambda: not controller.running, "the end of the earlier release", SECONDS)
    assert f"queuectl serve: {REFUSED}" in controller.log.read_bytes()[size:].decode()


def still_running(workspace: Workspace, started: ControllerProcess, pods: set[str]) -> None:
    started.wait_ready()
    assert {pod.uid for pod in workspace.running("train")} == pods
    assert len(workspace.running("next")) == 1
