"""`queuectl serve` works behind a PgBouncer in transaction mode, with LISTEN on a direct connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.localcluster import NodeSpec
from tests.operations.pgbouncer import needs_pgbouncer, pgbouncer
from tests.operations.servers import postgres_server
from tests.system.actions import remove, restart_controller, run_command
from tests.system.installation import Installation, installed

pytestmark = [pytest.mark.operations, pytest.mark.timeout(400), needs_pgbouncer]


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with postgres_server() as server, pgbouncer(server, "transaction") as pooler:
        settings = {
            "QUEUECTL_DATABASE_URL": pooler.through(server.url()),
            "QUEUECTL_DATABASE_DIRECT_URL": server.url(),
            "QUEUECTL_DATABASE_PGBOUNCER": "transaction",
        }
        with installed(NodeSpec(racks_per_block=2, hosts_per_rack=2), settings) as built:
            yield built


def test_gangs_run_commands_work_and_a_killed_controller_continues(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        for name in ("one", "two"):
            workspace.gang("Job", name, 2)
            workspace.until_state(name, "Running")
        run_command(workspace, "one", "hold")
        workspace.until_state("one", "Held")
        workspace.gang("Job", "wide", 4)
        restart_controller(workspace)
        installation.controller.wait_ready()
        run_command(workspace, "one", "release")
        workspace.until_state("one", "Running")
        assert workspace.workload("two")["attempt"] == 1
        remove(workspace, "one")
        remove(workspace, "two")
        workspace.until_state("wide", "Running")
