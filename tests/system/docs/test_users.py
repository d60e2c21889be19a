"""The commands of the pages for submitters, on the REST API and on the command line work as written."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any, Final

import pytest
import yaml

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest, configuration
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.support.pages import KIND_PAGES
from tests.support.people import account, namespace
from tests.support.python_pages import NOTEBOOK, PAGE, run
from tests.system.demo_cluster import DemoCluster, configuration_with, wait_for_event, whole
from tests.system.installation import RACK
from tests.system.transcript import ROOT, Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]


def test_the_python_of_the_page_and_of_the_notebook(
    demo_cluster: DemoCluster,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del shell  # it has cleared the cluster
    installation = demo_cluster.installation
    installation.rest.apply(configuration())
    demo_cluster.submit("team-a", "train", whole(44))
    demo_cluster.runs("team-a/train")
    demo_cluster.submit("team-a", "next", whole(8))
    demo_cluster.waits("team-a/next", "WaitingForQuota")
    monkeypatch.setenv("QUEUECTL_SERVER", installation.controller.api)
    monkeypatch.setenv("KUBECONFIG", str(installation.cluster.kubeconfig))
    for path in (NOTEBOOK, PAGE):
        run(path)
        assert "next" in capsys.readouterr().out


def test_the_pages_for_users(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("submit.md", shell)
    placed = Page("place-pods.md", shell)
    evicted = Page("evictions.md", shell)
    pauses = {"requeuingStrategy": {"backoffBaseSeconds": 5}}
    demo_cluster.installation.rest.apply(
        [*configuration(), configuration_with(waitForPodsReady=pauses)]
    )
    page.type("kubectl create -f docs/examples/job.yaml")
    demo_cluster.runs("team-a/train", "team-a/finetune")
    page.type("queuectl explain team-a/train")
    placed.type("queuectl explain team-a/finetune")
    evicted.type("kubectl annotate job train")
    status = ".metadata.annotations.queuectl\\.dev/status"
    read = f"kubectl get job train -n team-a -o jsonpath='{{{status}}}'"
    demo_cluster.until(lambda: "Running" in page.shell.type(read)[1], "its status annotation")
    page.type("kubectl get job train")
    page.type("kubectl get pods")
    page.type("queuectl logs", status=1)  # a simulated pod has no log: tests/real/test_logs.py
    page.type("queuectl eff")
    page.type("queuectl cancel")
    demo_cluster.remove("team-a")

    for number in range(5):
        demo_cluster.submit("team-a", f"run-{number}", whole(8))
        demo_cluster.runs(f"team-a/run-{number}")
    demo_cluster.submit("team-a", "next-64", whole(8))
    demo_cluster.waits("team-a/next-64", "WaitingForQuota")
    page.type("queuectl explain team-a/next-64")
    wait_for_event(demo_cluster, page, "team-a", "next-64", "WaitingForQuota")
    page.type("kubectl get events -n team-a")

    demo_cluster.submit("team-b", "low-128", whole(16))
    demo_cluster.runs("team-b/low-128")
    wait_for_event(demo_cluster, page, "team-b", "low-128", "PodsReady")
    demo_cluster.submit("team-b", "urgent-64b", whole(8), priority_class="urgent")
    demo_cluster.runs("team-b/urgent-64b")
    # It can have waited for quota before its start as well, so that Event alone does not show the preemption.
    for reason in ("Preempted", "WaitingForQuota"):
        wait_for_event(demo_cluster, page, "team-b", "low-128", reason)
    evicted.type("kubectl get events -n team-b")
    demo_cluster.remove("team-b")

    claim = {"claimName": "nowhere"}
    document = m.job("no-volume", "team-b", "training", whole(1))
    volumes = [{"name": "data", "persistentVolumeClaim": claim}]
    document["spec"]["template"]["spec"]["volumes"] = volumes
    demo_cluster.create(document)
    demo_cluster.waits("team-b/no-volume", "Backoff")
    evicted.type("queuectl explain team-b/no-volume")
    demo_cluster.installation.rest.apply([configuration_with()])
    for each in (page, placed, evicted):
        each.end()


def test_the_page_on_arrays(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("arrays.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    page.type("kubectl create -f docs/examples/array.yaml")
    demo_cluster.runs(*(f"team-a/sweep_{number}" for number in range(4)))
    page.type("queuectl explain team-a/sweep_0")
    page.type("kubectl patch job sweep")
    demo_cluster.runs("team-a/sweep_5")
    page.type("queuectl hold team-a/sweep_5")
    page.type("queuectl explain team-a/sweep_5")
    page.end()


def test_the_page_on_elastic_jobs(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("elastic.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    page.type("kubectl create -f docs/examples/elastic.yaml")
    demo_cluster.runs("team-a/elastic", "team-a/elastic_2")
    page.type("queuectl explain team-a/elastic")
    page.type("queuectl explain team-a/elastic_2")
    page.type("kubectl patch job elastic")
    page.end()


def test_the_page_on_rest(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("api.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    tag = page.type("curl -i").split('"')[1]
    page.type("curl -X PATCH", instead={'"7"': f'"{tag}"'})
    demo_cluster.installation.rest.apply(configuration())
    demo_cluster.submit("team-a", "mine", whole(1))
    demo_cluster.runs("team-a/mine")
    submit(page, m.job("next", "team-a", "training", whole(1)))
    seen = re.findall(r"^id: (\d+)", page.type("curl -N", status=STREAMS), re.MULTILINE)
    page.type("curl -N", status=STREAMS, instead={"ID: 75": f"ID: {seen[-1]}"})
    history = page.type('curl "$QUEUECTL_SERVER/api/v1/events?after')
    assert "team-a" in history
    page.type('curl "$QUEUECTL_SERVER/api/v1/nodes?domain')
    alike(
        page.type('curl "$QUEUECTL_SERVER/api/v1/nodes?search', shows=False),
        page,
        '{"items": [{"name"',
    )
    page.type('curl "$QUEUECTL_SERVER/api/v1/domains')
    page.type("curl -H 'If-None-Match")
    demo_cluster.submit("team-b", "too-wide-80", PodSetManifest(10, gpus=8, required=RACK))
    demo_cluster.waits("team-b/too-wide-80", "ShapeNeverFits")
    yours = m.job("yours", "team-a", "training", whole(4))
    (page.shell.folder / "yours.yaml").write_text(yaml.safe_dump(yours))
    alike(page.type("kubectl create -f yours.yaml", shows=False), page, '{"before"')
    page.type("curl -H 'Content-Type: application/json' -d")
    latest = page.type('curl "$QUEUECTL_SERVER/api/v1/decisions?limit', shows=False)
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


AUTHORITY: Final[Document] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "queuectl-ca", "namespace": SYSTEM_NAMESPACE},
    "data": {"ca.crt": "the certificate"},
}
"""The ConfigMap that a server with a certificate of its own writes."""


def test_the_page_on_the_command_line(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("cli.md", shell)
    queues = [m.local_queue("team-a", name, "team-a") for name in ("default", "main")]
    demo_cluster.installation.rest.apply([*configuration(), *queues])
    demo_cluster.installation.cluster.client.apply(namespace("ml"), account("ml", "operator"))
    demo_cluster.submit("team-a", "train", whole(1))
    demo_cluster.runs("team-a/train")
    looks = (
        "clusterqueues",
        "workloads --as",
        "workloads --state",
        "workloads --user",
        "workloads -l",
        "nodes",
        "nodes --summary",
        "nodes",
        "unmanaged",
        "domains",
    )
    assert "queuectl" in page.type("queuectl version")
    page.type("kubectl queuectl get workloads")
    client = demo_cluster.installation.cluster.client
    client.apply(namespace(SYSTEM_NAMESPACE), AUTHORITY)
    page.type("kubectl -n queuectl-system get configmap")
    assert (shell.folder / "ca.crt").read_text() == AUTHORITY["data"]["ca.crt"]
    client.delete(client.path_of(AUTHORITY))
    for what in (*looks, "commands", "events", "decisions"):
        page.type(f"queuectl get {what}")
    for begins in ("top", "explain", "history", "eff", "cancel"):
        page.type(f"queuectl {begins}")
    page.type("queuectl priority")
    waits = page.take("queuectl wait").replace("--timeout 1h", "--timeout 100ms")
    assert page.shell.type(waits)[0] == 1, "it still runs"
    status, printed = page.shell.type("timeout 5 " + page.take("queuectl get workloads --watch"))
    assert (status, "train" in printed) == (124, True)
    demo_cluster.remove("team-a")

    for begins in (
        "config export",
        "config diff",
        "apply",
        "stop",
        "stop",
        "resume",
        "audit --since",
        "audit --caller",
    ):
        page.type(f"queuectl {begins}")
    shutil.copy(ROOT / "docs" / "examples" / "job.yaml", page.shell.folder)
    for _ in range(5):
        page.type("queuectl whatif")
    for _ in range(2):
        page.type("queuectl simulate")
    page.type("queuectl trace")
    assert "team-a/training" in (shell.folder / "trace.csv").read_text()
    page.type("queuectl advise")
    page.type("queuectl init", status=4)
    (shell.folder / "queues.yaml").write_text(
        yaml.safe_dump_all(configuration())
    )  # as with status 0
    page.type("kubectl get nodes")
    page.type("queuectl delete --dry-run")
    page.type("queuectl delete clusterqueue")
    demo_cluster.installation.rest.apply(configuration())
    page.type("queuectl delete -f")
    demo_cluster.installation.rest.apply(configuration())
    page.type("source <(queuectl completion bash)")
    assert "server" in page.type("queuectl doctor")
    # tests/packaging installs the package.
    # test_operate runs the doctor as in a pod.
    inside = "kubectl -n queuectl-system exec"
    page.end("pip install .", "export QUEUECTL_", "kubectl -n queuectl-system port-forward", inside)


@pytest.mark.parametrize(("page", "name"), KIND_PAGES.items())
def test_the_page_of_a_kind(demo_cluster: DemoCluster, shell: Shell, page: str, name: str) -> None:
    typed = Page(page, shell)
    demo_cluster.installation.rest.apply(configuration())
    typed.type("kubectl create -f docs/examples/")
    demo_cluster.runs(f"team-a/{name}")
    typed.type(f"queuectl explain team-a/{name}")
    assert "Running" in typed.type("kubectl get pods")
    demo_cluster.remove("team-a")
    typed.end()
