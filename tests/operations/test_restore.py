"""A backup of the database is restored while gangs run: no gang restarts, and none starts twice."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from queuectl.db.embedded import DATABASE, EmbeddedServer
from queuectl.localcluster import NodeSpec
from tests.operations.servers import postgres_server, programs_first
from tests.system.actions import remove, run_command
from tests.system.demo_cluster import tools
from tests.system.installation import Installation, Workspace, installed
from tests.system.transcript import Page, Shell, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]

NODES = NodeSpec(racks_per_block=2, hosts_per_rack=4)
RESTORED = "queuectl_restored"
SCALE = "kubectl -n queuectl-system scale"
"""The controller is a process here. tests/real runs it as a Deployment."""
POINT_IN_TIME = (
    *(
        'psql "$ADMIN_URL" -c "ALTER',
        "pg_ctl",
        "pg_basebackup",
        "cp -a",
        "printf",
        "touch",
    ),
)
"""test_point_in_time.py runs them."""
CONTINUE = {"steady": 1, "late": 1, "again": 2, "new": 1}
"""Gangs that run at the restore, and their attempts."""
PODS = {"steady": 2, "late": 3, "again": 2, "new": 1}
"""Their pods."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with postgres_server() as started:
        yield started


@pytest.fixture(scope="module")
def installation(server: EmbeddedServer) -> Iterator[Installation]:
    with installed(NODES, {"QUEUECTL_DATABASE_URL": server.url()}) as built:
        yield built


@pytest.fixture
def typing(installation: Installation, server: EmbeddedServer) -> Iterator[Shell]:
    environment = tools(installation.cluster) | {
        "QUEUECTL_SERVER": installation.controller.api,
        "QUEUECTL_DATABASE_URL": server.url(),
        "RESTORED_URL": server.url(RESTORED),
        "ADMIN_URL": server.url("postgres"),
    }
    environment["PATH"] = programs_first(environment.get("PATH", os.environ["PATH"]))
    with shell(environment) as started:
        yield started


def test_a_restored_backup_restarts_no_gang(installation: Installation, typing: Shell) -> None:
    page = Page("back-up.md", typing)
    with installation.workspace(64) as workspace:
        before_the_backup(workspace)
        page.type("pg_dump")
        page.type("pg_restore --list")
        page.type("queuectl config export")
        after_the_backup(workspace)
        pods = uids(workspace)
        attempts = {name: workspace.workload(name)["attempt"] for name in CONTINUE}
        assert attempts == CONTINUE

        installation.controller.kill()
        restore(page)
        installation.controller.restart()
        installation.controller.wait_ready()

        workspace.until(
            lambda: {workspace.state(name) for name in CONTINUE} == {"Running"}, "all Running"
        )
        assert {name: workspace.workload(name)["attempt"] for name in CONTINUE} == CONTINUE
        workspace.until_state("short", "Finished")
        workspace.until_state("held", "Held")
        workspace.until_state("wide", "Pending")
        assert uids(workspace) == pods
        page.type("queuectl apply")
        # The backup does not have the hold.
        workspace.until_state("evicted", "Pending")
        remove(workspace, "new")
        assert workspace.until_state("evicted", "Running")["attempt"] == 2
    page.end(SCALE, *POINT_IN_TIME, "queuectl db status")


def before_the_backup(workspace: Workspace) -> None:
    """48 of 64 GPUs are in use, one gang waits for quota, and one is held."""
    for name, pods in {"steady": 2, "again": 2, "short": 1, "evicted": 1}.items():
        workspace.gang("Job", name, pods)
        workspace.until_state(name, "Running")
    workspace.gang("Job", "late", PODS["late"])
    workspace.gang("Job", "wide", 8)
    workspace.gang("Job", "held", 1)
    run_command(workspace, "held", "hold")
    workspace.until_state("held", "Held")


def after_the_backup(workspace: Workspace) -> None:
    """Changes that the backup does not have."""
    remove(workspace, "short")
    workspace.until_state("late", "Running")
    run_command(workspace, "again", "requeue")
    workspace.until(lambda: workspace.workload("again")["attempt"] == 2, "again: second attempt")
    workspace.until_state("again", "Running")
    run_command(workspace, "evicted", "hold")
    workspace.until_state("evicted", "Held")
    workspace.gang("Job", "new", 1, priority_class="high")
    workspace.until_state("new", "Running")


def uids(workspace: Workspace) -> dict[str, set[str]]:
    """The running pods of the gangs that continue, once the recording has all of them: the controller can be ahead of it."""
    found: dict[str, set[str]] = {}

    def complete() -> bool:
        for name, attempt in CONTINUE.items():
            found[name] = {pod.uid for pod in workspace.running(name) if pod.attempt == attempt}
        return {name: len(pods) for name, pods in found.items()} == PODS

    workspace.until(complete, "the pods in the recording")
    return found


def restore(page: Page) -> None:
    page.type("psql")
    page.type("pg_restore --no-owner")
    page.type("queuectl db upgrade --database-url")
    page.type("queuectl db status --database-url")
    hang_up = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'queuectl'"
    for statement in (
        hang_up,
        f"ALTER DATABASE {DATABASE} RENAME TO queuectl_before",
        f"ALTER DATABASE {RESTORED} RENAME TO {DATABASE}",
    ):
        assert page.shell.type(f'psql -q "$ADMIN_URL" -c "{statement}"')[0] == 0, page.shell.errors
