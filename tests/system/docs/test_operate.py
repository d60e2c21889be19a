"""The pages for operators and the page on a Kueue's configuration: a shell runs their commands.

test_takeover runs the commands that install queuectl, or that need the remains of a Kueue.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from functools import partial

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import scenario as m
from queuectl.demo.scenario import configuration
from queuectl.localcluster.layout import free_ports
from tests.system.actions import collect, outside_database, without_node
from tests.system.demo_cluster import (
    DemoCluster,
    admin_shell,
    configuration_with,
    wait_for_event,
    whole,
)
from tests.system.installation import RACK
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]

KUEUE = (
    *("kubectl get clusterqueues,", "kubectl -n kueue-system", "kubectl delete"),
    *(
        "kubectl apply",
        "kubectl -n queuectl-system",
        "kubectl get pods",
        "helm upgrade",
        "(cat kueue.yaml",
    ),
)

CLOUDNATIVE_PG = (
    "cat > queuectl-db.yaml",
    "kubectl apply -f queuectl-db.yaml",
    "URL=",
    "kubectl -n queuectl-system create secret generic queuectl-database",
    "helm upgrade queuectl",
)
"""tests/operations/test_cloudnative_pg.py types these."""
RECOVER = "queuectl recover"
"""tests/system/test_kills.py runs it on a database that was lost."""

ROLE = 'psql "$ADMIN_URL"'
"""tests/operations/test_verify_full.py prepares a server."""

STATUS = "queuectl db status"
"""It needs a database that the shell can reach."""

DEAD_NODE = ("kubectl get nodes", "kubectl taint nodes", "kubectl wait --for=condition=Ready")
"""tests/real/test_nodes.py runs them for a node that has lost its power."""

UNMANAGED = "queuectl get unmanaged"
"""tests/system/test_default_queue.py asks for the report, tests/unit/test_cli_watch.py prints the table."""

ALL = "exec 2>&1"
"""Makes a shell print standard error too."""


ON_CALL = ("kubectl -n queuectl-system get pods", "kubectl -n queuectl-system logs")
"""They need a controller that runs as a pod."""


def test_the_pages_for_operators(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("troubleshoot.md", shell)
    pauses = {"requeuingStrategy": {"backoffBaseSeconds": 5}}
    demo_cluster.installation.rest.apply(
        [*configuration(), configuration_with(waitForPodsReady=pauses)]
    )
    lease = Page("high-availability.md", shell)
    lease.type("kubectl get lease")
    lease.end(STATUS)
    rights = Page("rights.md", shell)
    rights.type("kubectl auth can-i")
    rights.end("QUEUECTL_AUDIT_LOGS", ".venv")  # of a contributor
    monitor = Page("monitor.md", shell)
    monitor.type("sed")
    monitor.end()
    failed(demo_cluster, page)
    lost(demo_cluster, page)
    demo_cluster.submit("team-b", "train", whole(1))
    demo_cluster.runs("team-b/train")
    commands = Page("workload-commands.md", shell)
    commands.type("queuectl hold")
    commands.end()
    on_call(demo_cluster, Page("on-call.md", shell))
    # With jobs that were started, an empty database would have to be recovered first.
    demo_cluster.remove("team-b")
    with admin_shell(demo_cluster.installation) as beside, outside_database() as server:
        outside(demo_cluster, beside, server, Page("troubleshoot.md", beside, page.typed))
    page.end(*DEAD_NODE)


def on_call(demo_cluster: DemoCluster, page: Page) -> None:
    """The controller has no pod here: it is a process alongside the control plane."""
    controller = demo_cluster.installation.controller
    variables = shlex.join(f"{name}={text}" for name, text in controller.environment.items())
    doctor = page.type(
        "kubectl -n queuectl-system exec",
        status=1,  # its database is embedded, so no variable has the URL
        shows=False,
        instead={
            "kubectl -n queuectl-system exec deploy/queuectl -- ": f"env -i {variables} $(dirname {sys.executable})/"
        },
    )
    assert "PROBLEM  settings    QUEUECTL_DATABASE_URL is not set" in doctor
    assert doctor.count("PROBLEM") == 1, doctor
    assert "is the leader: this replica" in doctor
    page.type("queuectl doctor", shows=False)
    page.type("queuectl get clusterqueues", shows=False)
    page.type("queuectl get workloads", shows=False)
    page.type("queuectl explain", shows=False, instead={"NAMESPACE/NAME": "team-b/train"})
    page.end(*ON_CALL)


def test_the_report_on_unmanaged_gpus_is_run_elsewhere(shell: Shell) -> None:
    Page("unmanaged-gpus.md", shell).end(UNMANAGED)


def failed(demo_cluster: DemoCluster, page: Page) -> None:
    """A start that fails."""
    document = m.job("no-claim", "team-b", "training", whole(1))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    document["spec"]["template"]["spec"]["volumes"] = volumes
    demo_cluster.create(document)
    wait_for_event(demo_cluster, page, "team-b", "no-claim", "Backoff")
    page.type("kubectl get events")
    demo_cluster.remove("team-b")


def lost(demo_cluster: DemoCluster, page: Page) -> None:
    """A gang that uses a whole rack loses a node."""
    demo_cluster.submit("team-a", "three", whole(8, required=RACK), retries=6)
    demo_cluster.runs("team-a/three")
    client = demo_cluster.installation.cluster.client
    one = client.get("/api/v1/namespaces/team-a/pods")["items"][0]
    with without_node(demo_cluster.installation, one["spec"]["nodeName"]):
        collect(client, "team-a", one["metadata"]["name"])
        demo_cluster.until(
            lambda: demo_cluster.installation.rest.workloads()["team-a/three"]["attempt"] == 2,
            "again",
        )
        page.type("queuectl describe")
    demo_cluster.remove("team-a")


def outside(demo_cluster: DemoCluster, shell: Shell, server: EmbeddedServer, trouble: Page) -> None:
    """A second process with its own database next to the leader. Then the database stops."""
    shell.type(ALL)
    page, database = Page("operate.md", shell), Page("database.md", shell)
    page.type('cp "$KUBECONFIG"')
    for begins in ("set-credentials", "set-context"):
        page.type(f"kubectl --kubeconfig sa.yaml config {begins}")
    url = server.url()
    shell.type(f"export QUEUECTL_DATABASE_URL='{url}'")
    database.type("queuectl db current", status=1)
    for begins in ("upgrade", "current"):
        database.type(f"queuectl db {begins}")
    database.end(RECOVER, ROLE, *CLOUDNATIVE_PG)

    api, metrics, health = (f"127.0.0.1:{port}" for port in free_ports(3))
    shell.type(
        f"export QUEUECTL_LISTEN={api} QUEUECTL_METRICS_LISTEN={metrics} QUEUECTL_HEALTH_LISTEN={health}"
    )
    line = page.take("QUEUECTL_KUBECONFIG=").replace("postgresql://…", f"'{url}'")
    shell.type(f"{line} > served 2>&1 &")
    shown = partial(shell.type, f"curl -s http://{health}/readyz")
    demo_cluster.until(lambda: '"ok"' in shown()[1], "it is ready")
    assert "API http" in (shell.folder / "served").read_text()
    Page("high-availability.md", shell).type(STATUS)

    asyncio.run(server.stop(immediate=True))
    try:
        demo_cluster.until(lambda: "blockers" in shown()[1], "it is not")
        trouble.type("curl -s", instead={"127.0.0.1:8081": health})
        shell.type(f"export QUEUECTL_SERVER=http://{api}")
        trouble.type("queuectl explain", status=1)
    finally:
        assert shell.type("kill %1; wait %1")[0] == 0
    page.end()


def test_the_page_for_who_brings_a_configuration(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("coming-from-kueue.md", shell)
    shell.type(ALL)
    for _ in range(2):
        page.type("queuectl plan")
    page.type("queuectl apply -f")
    for name in ("tune-1", "tune-2"):
        demo_cluster.submit("team-a", name, whole(1))
        demo_cluster.runs(f"team-a/{name}")
    page.type("sed")
    page.type("queuectl apply --dry-run")
    page.end(*KUEUE)


@pytest.mark.gpus
def test_the_page_on_failing_nodes(demo_cluster: DemoCluster, shell: Shell) -> None:
    rest, node = demo_cluster.installation.rest, "b0-r0-h0"
    rest.apply(configuration())
    page = Page("gpu-health.md", shell)

    def judged(*, unhealthy: bool) -> None:
        """Wait until the controller has judged the node."""
        shown = partial(rest._ask, "GET", f"/api/v1/nodes/{node}")
        demo_cluster.until(lambda: bool(shown()["unhealthy"]) is unhealthy, f"{node} is judged")

    page.type("kubectl patch node")
    judged(unhealthy=True)
    page.type("queuectl get nodes")
    page.type("curl -s")
    pinned = m.job("pinned", "team-a", "training", whole(1))
    pinned["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    demo_cluster.create(pinned)
    demo_cluster.waits("team-a/pinned", "TopologyPlacementFailed")
    assert f"{node} (unhealthy: condition KernelDeadlock=True" in str(
        rest.explain("team-a", "pinned")
    )
    demo_cluster.remove("team-a")
    page.type("kubectl patch node")
    judged(unhealthy=False)
    for line in ("queuectl get clusterqueue", "sed -i", "queuectl apply", "kubectl create"):
        page.type(line)
    demo_cluster.runs("team-a/train")
    assert node in nodes_of(demo_cluster)
    page.type("kubectl patch node")
    demo_cluster.until(lambda: node not in nodes_of(demo_cluster), "the gang has left the node")
    demo_cluster.runs("team-a/train")
    assert node not in nodes_of(demo_cluster)
    page.type("queuectl history team-a/train --evictions")
    page.type("kubectl delete job train")
    page.type("kubectl patch node")
    judged(unhealthy=False)
    page.end()


def nodes_of(demo_cluster: DemoCluster) -> set[str]:
    """The nodes with pods of a team."""
    pods = demo_cluster.installation.cluster.client.get("/api/v1/namespaces/team-a/pods")["items"]
    return {str(pod["spec"].get("nodeName")) for pod in pods}
