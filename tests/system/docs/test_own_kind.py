"""The commands of the page on a kind of one's own, on a cluster in which helm has installed the chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import NODES, configuration
from queuectl.localcluster import LocalCluster
from tests.support.chart import helm_program
from tests.support.gangruns import (
    KINDS_FILE,
    OWN_KINDS,
    create_account,
    simulated_controller,
    until_gated,
)
from tests.system.demo_cluster import TEAMS, DemoCluster, tools
from tests.system.installation import installed
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]
INSTALL = (
    "helm install queuectl deploy/chart --namespace queuectl-system --create-namespace"
    " --set image.repository=queuectl --set replicas=0"
)


def test_the_page_on_a_custom_kind() -> None:
    """queuectl runs outside the cluster, with the file that the Deployment would mount."""
    with ExitStack() as stack:
        pages: list[Page] = []

        @contextmanager
        def by_the_page(cluster: LocalCluster) -> Iterator[None]:
            environment = tools(cluster)
            path = f"{helm_program().parent}:{environment['PATH']}"
            page = Page(
                "bring-your-own-kind.md", stack.enter_context(shell({**environment, "PATH": path}))
            )
            status, printed = page.shell.type(INSTALL)
            assert status == 0, f"{printed}{page.shell.errors}"
            page.type("kubectl apply")
            page.type("helm upgrade")
            pages.append(page)
            create_account(cluster.client)
            until_gated(cluster.client)
            with simulated_controller(cluster):
                yield

        settings = {"QUEUECTL_KINDS_FILE": str(KINDS_FILE)}
        made = stack.enter_context(installed(NODES, settings, by_the_page, OWN_KINDS))
        made.cluster.client.apply(*m.namespaces(TEAMS))
        made.rest.apply(configuration())
        [page] = pages
        page.shell.type(f"export QUEUECTL_SERVER={made.controller.api}")
        page.type("queuectl doctor")
        page.type("kubectl create")
        DemoCluster(made).runs("team-a/own")
        page.type("queuectl explain")
        page.type("queuectl plan")
        page.end()
