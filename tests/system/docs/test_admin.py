"""The commands of the pages for administrators work as written, on a cluster like that of the demo."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest, configuration
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from tests.oidc.certified import LOCAL_CALLBACK, PUBLIC
from tests.oidc.plugin import id_token
from tests.support.people import account, binding, namespace, token_of
from tests.system.dashboard_users import issued_by, issuer_for, secured_installation
from tests.system.demo_cluster import TEAMS, DemoCluster, admin_shell, whole
from tests.system.installation import RACK
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]
TRAINER = account("team-a", "trainer")
OPS = account("queuectl-system", "ops")


def test_the_page_on_setting_up_queues(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("set-up-queues.md", shell)
    page.type("queuectl init -n team-a")
    page.type("grep")
    page.type("queuectl apply --dry-run -f queues.yaml")
    page.type("queuectl apply -f queues.yaml")
    demo_cluster.create(
        m.job("first", "team-a", "main", whole(4, required="nvidia.com/gpu.clique"))
    )
    demo_cluster.runs("team-a/first")
    page.type("queuectl init -f docs/examples/nodes.yaml")
    demo_cluster.clear()
    page.type("queuectl apply -f docs/examples/queues.yaml")
    page.type("queuectl get clusterqueues")
    demo_cluster.installation.rest.apply([m.cluster_queue("vision", "h100", {GPU: 64})])
    page.type("curl -X DELETE")
    page.type("queuectl get clusterqueue team-a")
    page.type("queuectl apply -f team-a.yaml")
    page.end()


def test_the_page_on_cohorts(shell: Shell) -> None:
    page = Page("share-quota.md", shell)
    for _ in range(2):
        page.type("queuectl plan -f docs/examples/lending.yaml")
    page.end()


def test_the_page_on_defragmentation(shell: Shell) -> None:
    page = Page("defragment.md", shell)
    page.type("queuectl plan -f docs/examples/fragmented.yaml")
    page.type("queuectl plan -f docs/examples/fragmented.yaml --defrag")
    page.type("sed 's/nvidia.com")
    page.type("queuectl plan -f fuller.yaml")
    page.end()


def test_the_pages_on_queue_order_and_on_predictions(
    demo_cluster: DemoCluster, shell: Shell
) -> None:
    """A full cluster, and files of its state."""
    demo_cluster.installation.rest.apply(configuration())
    order, page = Page("queue-order.md", shell), Page("predict.md", shell)
    for number in range(5):
        demo_cluster.submit("team-a", f"run-{number}", whole(8), priority_class="batch")
        demo_cluster.runs(f"team-a/run-{number}")
    demo_cluster.submit("team-a", "next-64", whole(8), priority_class="batch")
    demo_cluster.waits("team-a/next-64", "WaitingForQuota")
    demo_cluster.submit("team-a", "small-1", PodSetManifest(1, gpus=1), priority_class="batch")
    demo_cluster.waits("team-a/small-1", "WaitingInOrder")
    wide = PodSetManifest(10, gpus=8, required=RACK)
    demo_cluster.submit("team-b", "too-wide-80", wide, priority_class="batch")
    demo_cluster.waits("team-b/too-wide-80", "ShapeNeverFits")
    order.type("queuectl get workloads --state Pending")
    order.type("curl -s $QUEUECTL_SERVER/api/v1/pastuse", shows=False)
    order.end()

    demo_cluster.submit("team-b", "held", whole(8), priority_class="batch")
    demo_cluster.runs("team-b/held")
    demo_cluster.submit("team-b", "low-128", whole(16), priority_class="batch")
    demo_cluster.waits("team-b/low-128", "WaitingForQuota")
    page.type("kubectl get nodes,pods")
    page.type("for kind in")
    page.type("queuectl plan -f now.yaml -f queues.yaml")
    page.type("sed 's/nominalQuota: 352")
    page.type("queuectl plan -f now.yaml -f more.yaml")
    urgent = m.job("urgent-now", "team-b", "training", whole(16), priority_class="urgent")
    (page.shell.folder / "urgent.yaml").write_text(yaml.safe_dump(urgent))
    page.type("queuectl plan -f now.yaml -f queues.yaml -f urgent.yaml")
    train = m.job("train", "team-a", "training", whole(1))
    labels = train["metadata"].pop("labels")
    train["spec"]["template"].setdefault("metadata", {})["labels"] = labels
    web = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    (page.shell.folder / "draft.yaml").write_text(yaml.safe_dump_all([train, web]))
    page.type("queuectl plan -f now.yaml -f queues.yaml -f draft.yaml")
    page.end()
    for team in TEAMS:
        demo_cluster.remove(team)


def test_the_page_on_quota(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("give-quota.md", shell)
    page.write("speech.yaml")
    page.type("queuectl apply --dry-run -f speech.yaml")
    page.type("queuectl apply -f speech.yaml")
    for name, nodes in (("asr", 3), ("tts", 1)):
        demo_cluster.create(m.job(name, "team-a", "speech", whole(nodes)))
        demo_cluster.runs(f"team-a/{name}")
    page.type("sed -i")
    page.type("queuectl apply --dry-run -f speech.yaml")
    page.type("queuectl apply -f speech.yaml")
    page.type("queuectl describe clusterqueue speech")
    demo_cluster.remove("team-a")

    demo_cluster.installation.rest.apply([m.cluster_queue("vision", "h100", {GPU: 64})])
    page.write("deadline.yaml")
    for begins in ("apply -f deadline", "get quota", "describe clusterqueue vision"):
        page.type(f"queuectl {begins}")
    page.type("sed 's/: 2$/: 3/'")
    page.type("queuectl plan -f docs/examples/nodes.yaml")
    page.end("cat")


def test_the_page_on_stops_and_moves(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("stop-and-move.md", shell)
    stopped(demo_cluster, page)
    helped(demo_cluster, page)
    page.end()


def stopped(demo_cluster: DemoCluster, page: Page) -> None:
    """The queue of the second team is stopped and resumed, by command and by file."""
    page.type("queuectl stop clusterqueue team-b --drain", shows=False)  # no gang runs here
    page.type("queuectl stop clusterqueue team-b --reason")
    demo_cluster.submit("team-b", "held", whole(1))
    demo_cluster.waits("team-b/held", "ClusterQueueStopped")
    page.type("queuectl explain team-b/held")
    page.type("queuectl resume clusterqueue team-b")
    demo_cluster.runs("team-b/held")
    page.type("sed 's/queueingStrategy: BestEffortFIFO")
    page.type("queuectl apply -f hold.yaml")
    demo_cluster.installation.rest.apply(configuration())
    demo_cluster.remove("team-b")


def helped(demo_cluster: DemoCluster, page: Page) -> None:
    """One gang gets a priority, one is preempted, one is moved."""
    demo_cluster.submit("team-b", "full", whole(20), priority_class="batch")
    demo_cluster.runs("team-b/full")
    demo_cluster.submit("team-b", "probe", whole(2))
    demo_cluster.waits("team-b/probe", "WaitingForQuota")
    asked = page.type("queuectl priority team-b/probe")
    assert "requested" in asked
    demo_cluster.until(lambda: demo_cluster.installation.rest.workloads()["team-b/probe"]["priority"] == 500, "its priority")  # fmt: skip
    ahead = f"{datetime.now(UTC) + timedelta(hours=8):%Y-%m-%dT%H:%M:%SZ}"
    again = page.type(
        "curl -s -X POST $QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/probe",
        instead={"2027-11-22T08:00:00Z": ahead},
    )
    first = json.loads(again)["id"] - 1
    page.type(
        "curl -s $QUEUECTL_SERVER/api/v1/commands", instead={"commands/1": f"commands/{first}"}
    )
    demo_cluster.remove("team-b")

    demo_cluster.submit("team-b", "rest", whole(18), priority_class="batch")
    demo_cluster.submit("team-b", "train", whole(2))
    demo_cluster.runs("team-b/rest", "team-b/train")
    demo_cluster.submit("team-b", "eval", whole(2))
    demo_cluster.waits("team-b/eval", "WaitingForQuota")
    page.type("queuectl preempt team-b/train --dry-run")
    page.type('curl -s -X POST "$QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/train')
    demo_cluster.installation.rest.apply([m.local_queue("team-b", "spare", "team-b")])
    assert page.shell.type("queuectl hold team-b/train --wait 30s")[0] == 0
    page.type("queuectl move team-b/train spare")
    demo_cluster.runs("team-b/eval")
    assert page.shell.type("queuectl hold team-b/eval --wait 30s")[0] == 0
    demo_cluster.waits("team-b/eval", "Held")
    page.type("curl -s -X POST $QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/eval")


SECRET = "kubectl -n queuectl-system create secret"
"""The client here is a public one, and queuectl runs outside the cluster."""


def sign_in(page: Page, url: str) -> None:
    """The roles of groups of an issuer, and the name and groups that queuectl derives from a token."""
    page.type("kubectl create clusterrolebinding")
    page.type("kubectl -n team-a create rolebinding")
    if url:
        page.shell.type(f"export ID_TOKEN={asyncio.run(id_token(url, PUBLIC, 'alice'))}")
        here = {"https://queuectl.example.org": "--cacert ca.crt $QUEUECTL_SERVER"}
        session = json.loads(page.type("curl", instead=here))
        assert (session["name"], session["groups"]) == (
            "oidc:alice",
            ["oidc:gpu-ops", "oidc:ml", "system:authenticated"],
        )
    page.end(SECRET, *([] if url else ["curl"]))


def test_the_pages_on_access_audit_and_sign_in(tmp_path: Path) -> None:
    with (
        issuer_for(LOCAL_CALLBACK) as url,
        secured_installation(NodeSpec(), tmp_path, issued_by(url)) as installation,
    ):
        client = installation.cluster.client
        client.apply(namespace("team-a"), TRAINER, OPS)
        client.apply(binding("ops", "queuectl-platform-admin", OPS))
        ops = asyncio.run(token_of(installation, OPS))
        with admin_shell(installation) as started:
            started.type(f"export OPS={ops}")
            shutil.copy(tmp_path / "tls.crt", started.folder / "ca.crt")
            page, audit = Page("access.md", started), Page("audit.md", started)
            page.type("kubectl -n team-a create rolebinding")
            page.type("kubectl create clusterrolebinding")
            page.type("TOKEN=")
            page.type("curl --cacert ca.crt")
            page.type("curl --cacert ca.crt")
            page.type("kubectl auth can-i")
            page.end()
            cohort = {
                "apiVersion": "queuectl.dev/v1",
                "kind": "Cohort",
                "metadata": {"name": "all"},
            }
            put = f"""curl -s --cacert ca.crt -X PUT -H "Authorization: Bearer $OPS" -d '{json.dumps(cohort)}' \\
              -H 'Content-Type: application/json' $QUEUECTL_SERVER/api/v1/cohorts/all"""
            assert started.type(put)[0] == 0
            audit.type("curl --cacert ca.crt")
            audit.end()
            sign_in(Page("sign-in.md", started), url)
