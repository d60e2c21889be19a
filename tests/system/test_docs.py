"""The pages for admins and users are true: all their commands are typed as they stand, on a cluster like the demo's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.demo.scenario import NODES, configuration
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import wait_until
from tests.support.people import account, binding, namespace, token_of
from tests.system.house import RACK, SECONDS, House, house
from tests.system.transcript import ROOT, Page, Shell, shell
from tests.system.visitors import guarded_house

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
TEAMS = ("team-a", "team-b")
TRAINER = account("team-a", "trainer")
OPS = account("queuectl-system", "ops")


@dataclass
class Town:
    """The demo's cluster, and who submits what on it."""

    house: House

    def submit(self, team: str, name: str, pods: Pods, **options: Any) -> None:
        self.create(m.job(name, team, "training", pods, **options))

    def create(self, document: Document) -> None:
        client = self.house.cluster.client
        client.create(client.path_of(document).rsplit("/", 1)[0], document)

    def remove(self, team: str, *names: str) -> None:
        """Delete these jobs, or all, and wait until nothing of them is left."""
        client = self.house.cluster.client
        for path in ("/apis/batch/v1/namespaces/{}/jobs", "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"):  # fmt: skip
            base = path.format(team)
            for found in client.get(base)["items"]:
                if not names or found["metadata"]["name"] in names:
                    address = f"{base}/{found['metadata']['name']}"
                    client.delete(address, missing_ok=True, propagationPolicy="Background")
        self.until(lambda: not self._pods(team, names), f"{team}: {names or 'all'} gone")

    def _pods(self, team: str, names: tuple[str, ...]) -> list[str]:
        found = self.house.cluster.client.get(f"/api/v1/namespaces/{team}/pods")["items"]
        called = [str(pod["metadata"]["name"]) for pod in found]
        return [c for c in called if not names or c.startswith(tuple(f"{n}-" for n in names))]

    def until(self, done: Any, what: str) -> None:
        wait_until(done, what, SECONDS)

    def reason(self, ref: str) -> tuple[str, str]:
        """State and reason code."""
        found = self.house.rest.workloads().get(ref)
        return (found["state"], found["reason"]["code"]) if found else ("", "")

    def runs(self, *refs: str) -> None:
        """Wait until they do."""
        for ref in refs:
            self.until(lambda ref=ref: self.reason(ref)[0] == "Running", f"{ref} Running")

    def waits(self, ref: str, code: str) -> None:
        """Wait until it waits for this reason."""
        self.until(lambda: self.reason(ref)[1] == code, f"{ref} {code}")


def tools(home: House, server: str) -> dict[str, str]:
    """The environment that people type in."""
    if any(shutil.which(name) is None for name in ("curl", "jq", "bash")):
        pytest.skip("curl, jq and bash are needed")
    kubectl = home.cluster.kubectl
    if kubectl is None:
        pytest.skip("there is no kubectl beside the API server's programs")
    path = [str(Path(sys.executable).parent), str(kubectl.parent), os.environ["PATH"]]
    return {
        "PATH": ":".join(path),
        "KUBECONFIG": str(home.cluster.kubeconfig),
        "QUEUECTL_SERVER": server,
    }


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    with house(NODES, {"QUEUECTL_UNSCHEDULABLE_SECONDS": "2"}) as built:
        built.cluster.client.apply(*m.namespaces(TEAMS))
        yield Town(built)


@pytest.fixture
def typing(town: Town) -> Iterator[Shell]:
    """A shell on the cluster, on which nobody has submitted anything."""
    for team in TEAMS:
        town.remove(team)
    with shell(tools(town.house, town.house.controller.api)) as started:
        yield started


def whole(count: int) -> Pods:
    """Pods of whole nodes."""
    return Pods(count, gpus=8, cpu="48", memory="512Gi")


def test_the_page_for_admins(town: Town, typing: Shell) -> None:
    page = Page("admin.md", typing)
    page.type("queuectl apply -f docs/examples/queues.yaml")
    page.type("queuectl get clusterqueues")
    vision = m.cluster_queue("vision", "h100", {GPU: 64})
    town.house.rest.apply([vision])
    page.type("curl -X DELETE")
    for _ in range(2):
        page.type("queuectl plan -f docs/examples/lending.yaml")
    page.type("sed 's/: 2$/: 3/'")
    page.type("queuectl plan -f docs/examples/nodes.yaml")
    page.type("queuectl plan -f docs/examples/fragmented.yaml")
    page.type("queuectl plan -f docs/examples/fragmented.yaml --defrag")
    page.type("sed 's/nvidia.com")
    page.type("queuectl plan -f fuller.yaml")
    what_if(town, page)
    held(town, page)

    town.house.rest.apply([vision])
    page.write("deadline.yaml")
    for begins in ("queuectl apply", "queuectl get", "queuectl describe"):
        page.type(begins)
    helped(town, page)
    page.end(*SIGNED)


def what_if(town: Town, page: Page) -> None:
    """A full cluster, and files of it."""
    for number in range(5):
        town.submit("team-a", f"run-{number}", whole(8), priority_class="batch")
        town.runs(f"team-a/run-{number}")
    town.submit("team-a", "next-64", whole(8), priority_class="batch")
    town.waits("team-a/next-64", "WaitingForQuota")
    town.submit("team-a", "small-1", Pods(1, gpus=1), priority_class="batch")
    town.waits("team-a/small-1", "WaitingInOrder")
    wide = Pods(10, gpus=8, required=RACK)
    town.submit("team-b", "too-wide-80", wide, priority_class="batch")
    town.waits("team-b/too-wide-80", "ShapeNeverFits")
    page.type("queuectl get workloads --state Pending")

    town.submit("team-b", "held", whole(8), priority_class="batch")
    town.runs("team-b/held")
    town.submit("team-b", "low-128", whole(16), priority_class="batch")
    town.waits("team-b/low-128", "WaitingForQuota")
    page.type("kubectl get nodes,pods")
    page.type("for kind in")
    page.type("queuectl plan -f now.yaml -f queues.yaml")
    page.type("sed 's/nominalQuota: 352")
    page.type("queuectl plan -f now.yaml -f more.yaml")
    urgent = m.job("urgent-now", "team-b", "training", whole(16), priority_class="urgent")
    (page.shell.folder / "urgent.yaml").write_text(yaml.safe_dump(urgent))
    page.type("queuectl plan -f now.yaml -f queues.yaml -f urgent.yaml")
    for team in TEAMS:
        town.remove(team)


def held(town: Town, page: Page) -> None:
    """The queue of the second team is stopped, and goes on again."""
    given = (ROOT / "docs" / "examples" / "queues.yaml").read_text()
    stopped = re.sub(r"(queueingStrategy: BestEffortFIFO)", r"\1\n  stopPolicy: Hold", given)
    (page.shell.folder / "hold.yaml").write_text(stopped)
    page.type("queuectl apply -f hold.yaml")
    town.submit("team-b", "held", whole(1))
    town.waits("team-b/held", "ClusterQueueStopped")
    page.type("queuectl explain team-b/held")
    town.house.rest.apply(configuration())
    town.runs("team-b/held")
    town.remove("team-b")


def helped(town: Town, page: Page) -> None:
    """One gang goes first, one is to leave, one moves."""
    town.submit("team-b", "full", whole(20), priority_class="batch")
    town.runs("team-b/full")
    town.submit("team-b", "probe", whole(2))
    town.waits("team-b/probe", "WaitingForQuota")
    asked = page.type("queuectl priority team-b/probe")
    assert "asked for" in asked
    town.until(lambda: town.house.rest.workloads()["team-b/probe"]["priority"] == 500, "its priority")  # fmt: skip
    page.type("curl -s -X POST $QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/probe")
    page.type("curl -s $QUEUECTL_SERVER/api/v1/commands")
    town.remove("team-b")

    town.submit("team-b", "rest", whole(18), priority_class="batch")
    town.submit("team-b", "train", whole(2))
    town.runs("team-b/rest", "team-b/train")
    town.submit("team-b", "eval", whole(2))
    town.waits("team-b/eval", "WaitingForQuota")
    page.type("queuectl preempt team-b/train --dry-run")
    page.type('curl -s -X POST "$QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/train')
    town.house.rest.apply([m.local_queue("team-b", "spare", "team-b")])
    assert page.shell.type("queuectl hold team-b/train --wait 30")[0] == 0
    page.type("queuectl move team-b/train spare")
    town.runs("team-b/eval")
    assert page.shell.type("queuectl hold team-b/eval --wait 30")[0] == 0
    town.waits("team-b/eval", "Held")
    page.type("curl -s -X POST $QUEUECTL_SERVER/api/v1/namespaces/team-b/workloads/eval")
    page.type("curl -s $QUEUECTL_SERVER/api/v1/pastuse", shows=False)


SIGNED = ("kubectl -n team-a create", "kubectl create", "TOKEN=", "curl --cacert", "kubectl auth")
"""Those that need callers who are told apart."""


def test_the_page_for_admins_where_callers_are_told_apart(tmp_path: Path) -> None:
    with guarded_house(NodeSpec(), tmp_path) as home:
        client = home.cluster.client
        client.apply(namespace("team-a"), TRAINER, OPS)
        client.apply(binding("ops", "queuectl-platform-admin", OPS))
        ops = asyncio.run(token_of(home, OPS))
        with shell({**tools(home, home.controller.api), "OPS": ops}) as started:
            shutil.copy(tmp_path / "tls.crt", started.folder)
            page = Page("admin.md", started)
            page.type("kubectl -n team-a create rolebinding")
            page.type("kubectl create clusterrolebinding")
            page.type("TOKEN=")
            page.type("curl --cacert tls.crt")
            page.type("curl --cacert tls.crt")
            page.type("kubectl auth can-i")
            cohort = {
                "apiVersion": "queuectl.dev/v1",
                "kind": "Cohort",
                "metadata": {"name": "all"},
            }
            put = f"""curl -s --cacert tls.crt -X PUT -H "Authorization: Bearer $OPS" -d '{json.dumps(cohort)}' \\
              -H 'Content-Type: application/json' $QUEUECTL_SERVER/api/v1/cohorts/all"""
            assert started.type(put)[0] == 0
            page.type("curl --cacert tls.crt")
            page.end("queuectl", "curl -X", "curl -s", "sed", "cat", "for kind", "kubectl get")


def test_the_page_for_users(town: Town, typing: Shell) -> None:
    page = Page("submit.md", typing)
    pauses = {"requeuingStrategy": {"backoffBaseSeconds": 5}}
    town.house.rest.apply([*configuration(), rules(waitForPodsReady=pauses)])
    page.type("kubectl create -f docs/examples/job.yaml")
    town.runs("team-a/train", "team-a/finetune")
    page.type("queuectl explain team-a/train")
    page.type("queuectl explain team-a/finetune")
    status = ".metadata.annotations.queuectl\\.dev/status"
    read = f"kubectl get job train -n team-a -o jsonpath='{{{status}}}'"
    town.until(lambda: "Running" in page.shell.type(read)[1], "it is told so")
    page.type("kubectl get job train")
    town.remove("team-a")

    for number in range(5):
        town.submit("team-a", f"run-{number}", whole(8))
        town.runs(f"team-a/run-{number}")
    town.submit("team-a", "next-64", whole(8))
    town.waits("team-a/next-64", "WaitingForQuota")
    page.type("queuectl explain team-a/next-64")
    told(town, page, "team-a", "next-64", "WaitingForQuota")
    page.type("kubectl get events -n team-a")

    town.submit("team-b", "low-128", whole(16))
    town.runs("team-b/low-128")
    told(town, page, "team-b", "low-128", "PodsReady")
    town.submit("team-b", "urgent-64b", whole(8), priority_class="urgent")
    town.runs("team-b/urgent-64b")
    told(town, page, "team-b", "low-128", "WaitingForQuota")
    page.type("kubectl get events -n team-b")
    town.remove("team-b")

    claim = {"claimName": "nowhere"}
    document = m.job("no-volume", "team-b", "training", whole(1))
    volumes = [{"name": "data", "persistentVolumeClaim": claim}]
    document["spec"]["template"]["spec"]["volumes"] = volumes
    town.create(document)
    town.waits("team-b/no-volume", "Backoff")
    page.type("queuectl explain team-b/no-volume")
    town.house.rest.apply([rules()])
    page.end()


def rules(**fields: Any) -> Document:
    """The Configuration."""
    metadata = {"name": "default"}
    return {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": metadata} | fields


def told(town: Town, page: Page, team: str, name: str, word: str) -> None:
    """Wait until an Event says so: waits are told after a pause."""
    line = f"kubectl get events -n {team} --field-selector involvedObject.name={name}"
    town.until(lambda: word in page.shell.type(line)[1], f"{name}: an Event {word}")


def test_the_page_on_rest(town: Town, typing: Shell) -> None:
    page = Page("api.md", typing)
    town.house.rest.apply(configuration())
    tag = page.type("curl -i").split('"')[1]
    page.type("curl -X PATCH", instead={'"7"': f'"{tag}"'})
    town.house.rest.apply(configuration())
    town.submit("team-a", "mine", whole(1))
    town.runs("team-a/mine")
    submit(page, m.job("next", "team-a", "training", whole(1)))
    page.type("curl -N", status=STREAMS)
    page.type("curl -N", status=STREAMS)
    history = page.type('curl "$QUEUECTL_SERVER/api/v1/events?after')
    assert "team-a" in history
    page.type('curl "$QUEUECTL_SERVER/api/v1/nodes?domain')
    alike(page.type('curl "$QUEUECTL_SERVER/api/v1/nodes?search'), page, '{"items": [{"name"')
    page.type('curl "$QUEUECTL_SERVER/api/v1/domains')
    page.type("curl -H 'If-None-Match")
    town.submit("team-b", "too-wide-80", Pods(10, gpus=8, required=RACK))
    town.waits("team-b/too-wide-80", "ShapeNeverFits")
    yours = m.job("yours", "team-a", "training", whole(4))
    (page.shell.folder / "yours.yaml").write_text(yaml.safe_dump(yours))
    alike(page.type("kubectl create -f yours.yaml"), page, '{"before"')
    page.type("curl -H 'Content-Type: application/json' -d")
    latest = page.type('curl "$QUEUECTL_SERVER/api/v1/decisions?limit')
    alike(latest, page, '{"items": [{"id": 8')
    number = json.loads(latest)["items"][0]["id"]
    page.type('curl "$QUEUECTL_SERVER/api/v1/decisions/8', instead={"/8": f"/{number}"})
    page.end()


def submit(page: Page, document: Document) -> None:
    """Create a job in a second, while the next command runs."""
    (page.shell.folder / "next.yaml").write_text(yaml.safe_dump(document))
    assert page.shell.type("(sleep 1; kubectl create -f next.yaml) > submitted &")[0] == 0


STREAMS = 28  # what curl ends with when it was stopped in time


def alike(printed: str, page: Page, begins: str) -> None:
    """An answer has all the fields that the page shows in a block of JSON."""
    blocks = re.findall(r"^```json\n(.*?)^```", page.text, re.MULTILINE | re.DOTALL)
    (shown,) = (block for block in blocks if block.startswith(begins))
    assert missing(json.loads(shown), json.loads(printed)) == []


def missing(shown: Any, given: Any, path: str = "") -> list[str]:
    """Fields of one document that another has not; of lists, the first members are compared."""
    if isinstance(shown, dict) and path.endswith(
        ("nodes", "reasons", "solver", "free", "capacity")
    ):
        return [] if isinstance(given, dict) else [path]
    if isinstance(shown, dict):
        lost = [f"{path}.{key}" for key in shown if not isinstance(given, dict) or key not in given]
        here = [key for key in shown if isinstance(given, dict) and key in given]
        return lost + [
            one for key in here for one in missing(shown[key], given[key], f"{path}.{key}")
        ]
    if isinstance(shown, list) and shown:
        return missing(shown[0], given[0], f"{path}[0]") if given else [path]
    return []


def test_the_page_on_the_command_line(town: Town, typing: Shell) -> None:
    page = Page("cli.md", typing)
    queues = [m.local_queue("team-a", name, "team-a") for name in ("default", "main")]
    town.house.rest.apply([*configuration(), *queues])
    town.house.cluster.client.apply(namespace("ml"), account("ml", "operator"))
    town.submit("team-a", "train", whole(1))
    town.runs("team-a/train")
    looks = ("clusterqueues", "workloads --as", "workloads --state", "nodes", "nodes", "domains")
    for what in (*looks, "commands", "events", "decisions"):
        page.type(f"queuectl get {what}")
    for begins in ("top", "explain", "history"):
        page.type(f"queuectl {begins}")
    status, printed = page.shell.type("timeout 5 " + page.take("queuectl get workloads --watch"))
    assert (status, "train" in printed) == (124, True)
    town.remove("team-a")

    for begins in ("config export", "config diff", "apply", "audit --since", "audit --caller"):
        page.type(f"queuectl {begins}")
    shutil.copy(ROOT / "docs" / "examples" / "job.yaml", page.shell.folder)
    for _ in range(5):
        page.type("queuectl whatif")
    page.type("queuectl delete --dry-run")
    page.type("queuectl delete clusterqueue")
    town.house.rest.apply(configuration())
    page.type("queuectl delete -f")
    town.house.rest.apply(configuration())
    page.type("source <(queuectl completion bash)")
    assert "server" in page.type("queuectl doctor")
    page.end("export QUEUECTL_SERVER=https://queuectl.example.com")
