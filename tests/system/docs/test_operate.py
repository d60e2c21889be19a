"""The pages for operators and the page on a Kueue's configuration: a shell runs their commands.

test_takeover runs the commands that install queuectl, or that need the remains of a Kueue.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import manifests as m
from queuectl.demo.scenario import configuration
from queuectl.localcluster.layout import free_ports
from tests.system.acts import collect, outside_database, without_node
from tests.system.house import RACK
from tests.system.town import Town, rules, seat, told, whole
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

INSTALL = (
    *("kubectl create namespace", "kubectl -n queuectl-system create", "openssl"),
    "kubectl apply",
)
KUEUE = (
    *("kubectl get clusterqueues,", "kubectl -n kueue-system", "kubectl delete"),
    *("kubectl apply", "kubectl -n queuectl-system"),
)

RECOVER = "queuectl recover"
"""tests/system/test_kills.py runs it on a database that was lost."""

UNMANAGED = "queuectl get unmanaged"
"""tests/system/test_default_queue.py asks for the report, tests/unit/test_cli_watch.py prints the table."""

ALL = "exec 2>&1"
"""Makes a shell print standard error too."""


ON_CALL = (
    *("kubectl -n queuectl-system get pods", "kubectl -n queuectl-system port-forward"),
    "kubectl -n queuectl-system logs",
)
"""They need a controller that runs as a pod."""


def test_the_pages_for_operators(town: Town, typing: Shell) -> None:
    page = Page("troubleshoot.md", typing)
    pauses = {"requeuingStrategy": {"backoffBaseSeconds": 5}}
    town.house.rest.apply([*configuration(), rules(waitForPodsReady=pauses)])
    lease = Page("high-availability.md", typing)
    lease.type("kubectl get lease")
    lease.end()
    rights = Page("rights.md", typing)
    rights.type("kubectl auth can-i", shows=False)
    rights.end()
    monitor = Page("monitor.md", typing)
    monitor.type("sed")
    monitor.end()
    failed(town, page)
    lost(town, page)
    town.submit("team-b", "train", whole(1))
    town.runs("team-b/train")
    commands = Page("workload-commands.md", typing)
    commands.type("queuectl hold")
    commands.end()
    on_call(town, Page("on-call.md", typing))
    # With jobs that were started, an empty database would have to be recovered first.
    town.remove("team-b")
    with seat(town.house) as beside, outside_database() as server:
        outside(town, beside, server, Page("troubleshoot.md", beside, page.typed))
    page.end()


def on_call(town: Town, page: Page) -> None:
    """The controller has no pod here: it is a process beside the control plane."""
    page.type("kubectl -n queuectl-system get lease")
    page.type("queuectl doctor", shows=False)
    page.type("queuectl get clusterqueues", shows=False)
    page.type("queuectl get workloads", shows=False)
    page.type("queuectl explain", shows=False, instead={"NAMESPACE/NAME": "team-b/train"})
    page.type(
        "curl -s", shows=False, instead={"http://127.0.0.1:8080": town.house.controller.metrics}
    )
    page.end(*ON_CALL)


def test_the_report_on_unmanaged_gpus_is_run_elsewhere(typing: Shell) -> None:
    Page("unmanaged-gpus.md", typing).end(UNMANAGED)


def failed(town: Town, page: Page) -> None:
    """A start that fails."""
    document = m.job("no-claim", "team-b", "training", whole(1))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    document["spec"]["template"]["spec"]["volumes"] = volumes
    town.create(document)
    told(town, page, "team-b", "no-claim", "Backoff")
    page.type("kubectl get events")
    town.remove("team-b")


def lost(town: Town, page: Page) -> None:
    """A gang that uses a whole rack loses a node."""
    town.submit("team-a", "three", whole(8, required=RACK), retries=6)
    town.runs("team-a/three")
    client = town.house.cluster.client
    one = client.get("/api/v1/namespaces/team-a/pods")["items"][0]
    with without_node(town.house, one["spec"]["nodeName"]):
        collect(client, "team-a", one["metadata"]["name"])
        town.until(lambda: town.house.rest.workloads()["team-a/three"]["attempt"] == 2, "again")
        page.type("queuectl describe")
    town.remove("team-a")


def outside(town: Town, shell: Shell, server: EmbeddedServer, trouble: Page) -> None:
    """A second process with its own database beside the leader. Then the database stops."""
    shell.type(ALL)
    page, database = Page("operate.md", shell), Page("database.md", shell)
    page.type('cp "$KUBECONFIG"')
    for begins in ("export KUBECONFIG", "kubectl config set-cred", "kubectl config set-context"):
        page.type(begins)
    url = server.url()
    shell.type(f"export QUEUECTL_DATABASE_URL='{url}'")
    database.type("queuectl db current", status=1)
    for begins in ("upgrade", "current"):
        database.type(f"queuectl db {begins}")
    database.end(RECOVER)

    api, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    shell.type(f"export QUEUECTL_LISTEN={api} QUEUECTL_METRICS_LISTEN={metrics}")
    line = page.take("QUEUECTL_KUBECONFIG=").replace("postgresql://…", f"'{url}'")
    shell.type(f"{line} > served 2>&1 &")
    shown = partial(shell.type, f"curl -s http://{metrics}/readyz")
    town.until(lambda: '"ok"' in shown()[1], "it is ready")
    assert "API http" in (shell.folder / "served").read_text()

    asyncio.run(server.stop(immediate=True))
    try:
        town.until(lambda: "blockers" in shown()[1], "it is not")
        trouble.type("curl -s", instead={"127.0.0.1:8080": metrics})
        shell.type(f"export QUEUECTL_SERVER=http://{api}")
        trouble.type("queuectl explain", status=1)
    finally:
        assert shell.type("kill %1; wait %1")[0] == 0
    page.end(*INSTALL)


def test_the_page_for_who_brings_a_configuration(town: Town, typing: Shell) -> None:
    page = Page("coming-from-kueue.md", typing)
    typing.type(ALL)
    for _ in range(2):
        page.type("queuectl plan")
    page.type("queuectl apply -f")
    for name in ("tune-1", "tune-2"):
        town.submit("team-a", name, whole(1))
        town.runs(f"team-a/{name}")
    page.type("sed")
    page.type("queuectl apply --dry-run")
    page.end(*KUEUE)
