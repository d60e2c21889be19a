"""The commands of the guides for tasks work as written. A test runs each command of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest
import yaml

from queuectl.demo import scenario as m
from queuectl.demo.scenario import configuration
from queuectl.domain.quantity import GPU
from tests.support.codeblocks import code, inline_commands, transcript
from tests.support.pages import KIND_PAGES, PAGES
from tests.support.people import account, namespace
from tests.system.demo_cluster import DemoCluster, whole
from tests.system.transcript import ROOT, Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]

NAMES = {
    "queuectl plan -f": "the complete commands are next to it",
    "queuectl plan --defrag": "with its files in the block below",
    "queuectl plan --mig": "with its files in reconfigure-mig.md",
    "queuectl drain --move": "with its node in reconfigure-mig.md",
    "queuectl plan -o json": "tests/unit/test_docs_examples runs it on the examples",
    "queuectl plan --snapshot": "with its file in the runbook; tests/control/test_refused_plan runs it",
    "queuectl apply --dry-run": "with its file in the block below",
    "queuectl config confirm": "tests/api/test_configuration_owner.py confirms a deletion",
    "queuectl db move": "tests/db/test_move.py moves a database",
    "queuectl db serve": "it serves until it is ended; tests/db/test_bundled_database.py",
    "queuectl db upgrade": "of a database that the reader names",
    "queuectl db upgrade --pre": "of a database that the reader names",
    "queuectl kueue hand-over": "of a cluster with a Kueue: tests/operations/test_back_to_kueue.py",
    "queuectl describe workload": "of any gang, as in tests/unit/test_cli_clients.py",
    "queuectl history -o wide": "of any gang, as in tests/unit/test_cli_views.py",
    "queuectl serve --shadow": "it serves until it is ended; tests/operations/test_shadow.py",
    "queuectl config prices": "with its file in the block below",
    "queuectl preempt --dry-run": "of any gang; tests/unit/test_cli_clients tries it",
    "queuectl subscribe --events": "with its receiver in notifications.md",
    "kubectl get -o json": "of anything",
    "kubectl apply --server-side": "of anything",
    "kubectl delete node": "of any node; the commands after it are run",
}
"""Names of commands in sentences, without their arguments, and the reason why no test runs them."""
UNTRIED = {
    "kubectl -n queuectl-system describe pod queuectl-database-0": "queuectl runs outside the cluster here",
    "kubectl -n queuectl-system delete statefulset/queuectl-database pvc/data-queuectl-database-0": "the database of the chart is not installed here",
    "queuectl get jobs --mine": "the server of the demo does not authenticate its callers",
    "kubectl krew install --manifest-url URL": "no release exists",
    "kubectl -n queuectl-system scale deployment queuectl --replicas=0": "queuectl runs outside the cluster here",
    "kubectl -n queuectl-system scale deployment queuectl --replicas=2": "queuectl runs outside the cluster here",
    "kubectl -n queuectl-system rollout restart deployment queuectl": "queuectl runs outside the cluster here",
    "kubectl -n queuectl-system exec deploy/queuectl -- queuectl doctor": "test_operate runs the doctor as in a pod",
    "kubectl -n queuectl-system logs deployment/queuectl --previous --tail=5": "queuectl runs outside the cluster here",
    "kubectl -n queuectl-system logs deployment/queuectl -c migrate": "queuectl runs outside the cluster here",
    "kubectl delete -f deploy/chart/definitions": "of a cluster with the CRDs: tests/operations/test_crd_kubectl.py",
    "kubectl get clusterqueues": "of a cluster with the CRDs: tests/operations/test_crd_kubectl.py",
    "kubectl get apiservice v1.visibility.queuectl.dev": "of a cluster with the aggregated API: tests/operations/test_visibility.py",
    "kubectl get queuectl -A": "of a cluster with the CRDs: tests/operations/test_crd_kubectl.py",
    "kubectl -n queuectl-system exec statefulset/queuectl-database -- queuectl db upgrade --grant": "the database of the chart has no pod here",
    "queuectl localcluster up": "it would leave a cluster; tests/cluster/test_localcluster_run.py starts one",
    "queuectl completion fish | source": "fish is not installed here; tests/unit/test_cli_main does it for other shells",
    "kubectl apply -k .": "of a kustomization that the reader writes; test_takeover has one",
    "kubectl delete job sweep -n team-a": "of the array on the page",
    "queuectl logs team-a/train --rank 0 -f": "simulated pods have no logs: tests/real/test_logs.py",
    "kubectl delete priorityclass queuectl-managed": "one of several steps; the last one makes the class again",
    "kubectl -n team-a create quota no-new-jobs --hard=count/jobs.batch=0": "it would refuse the jobs of the other tests",
    "kubectl get workloads.kueue.x-k8s.io -A -o yaml": "of a cluster with a Kueue: test_takeover has one",
}
BLOCKS = {
    "make setup": "test_docs_examples plans the files",
    "Admitted": "test_docs_examples",
    "✓ all pods": "test_demo",
    "helm install": "test_readme renders the chart with these values; tests/operations/test_install.py installs it",
}
"""Blocks of the README by their first words, and the test that checks each."""


def test_the_page_on_nodes_that_are_taken_away(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("drain.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    page.type("kubectl create")
    demo_cluster.runs("team-a/train")
    page.type("queuectl get nodes")
    page.type("queuectl whatif --drain")
    page.type("queuectl requeue team-a/train --dry-run")
    page.type("kubectl cordon")
    try:
        page.type("queuectl drain")
        demo_cluster.runs("team-a/train")
        page.type("queuectl history")
        page.type("kubectl drain")
    finally:
        page.type("kubectl uncordon")
    page.type("queuectl get nodes")
    page.type("kubectl delete job")
    page.end()


STATE = "nvidia.com/gpu-driver-upgrade-state"


def test_the_page_on_driver_updates(demo_cluster: DemoCluster, shell: Shell) -> None:
    """The upgrade controller of the GPU Operator is not here: the page writes its labels, and cordons and uncordons."""
    page = Page("driver-updates.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    page.type("kubectl create")
    demo_cluster.runs("team-a/train")
    page.write("policy.yaml")
    pods = demo_cluster.installation.cluster.client.get("/api/v1/namespaces/team-a/pods")["items"]
    train = [pod for pod in pods if pod["metadata"]["name"].startswith("train-")]
    policy = yaml.safe_load((shell.folder / "policy.yaml").read_text())
    selector = policy["spec"]["driver"]["upgradePolicy"]["waitForCompletion"]["podSelector"]
    assert all(selector in pod["metadata"]["labels"] for pod in train)
    page.type("kubectl cordon")
    page.type("kubectl label")
    try:
        seen = f"queuectl get nodes --domain {STATE}=wait-for-jobs-required -o name"
        demo_cluster.until(lambda: shell.type(seen)[1].count("/") == 2, "the labels")
        page.type("queuectl drain")
        page.type("queuectl drain")
        demo_cluster.runs("team-a/train")
        shell.type(f"kubectl label nodes -l {STATE} --overwrite {STATE}=upgrade-done")
        demo_cluster.until(lambda: shell.type(seen)[1].count("/") == 0, "the labels")
        page.type("queuectl drain")
        page.type("kubectl apply")
        account = "--as=system:serviceaccount:queuectl-system:queuectl-drain"
        listed = shell.type(f"kubectl auth can-i --list {account}")[1]
        rights = ("nodes.queuectl.dev", "workloads.queuectl.dev", "workloads.queuectl.dev/requeue")
        assert all(right in listed for right in rights), listed
        page.type("kubectl get nodes")
        page.type("queuectl history")
        page.type("kubectl delete -f")
        page.type("kubectl delete job")
    finally:
        page.type("kubectl uncordon")
        page.type("kubectl label")
    page.end("kubectl patch")


def test_the_page_for_team_leads(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("team.md", shell)
    demo_cluster.installation.rest.apply(configuration())
    for name, nodes in (("sweep", 8), ("train", 12)):
        demo_cluster.submit("team-b", name, whole(nodes), priority_class="batch")
        demo_cluster.runs(f"team-b/{name}")
    for name, nodes in (("eval", 2), ("probe", 1)):
        demo_cluster.submit("team-b", name, whole(nodes), priority_class="batch")
        demo_cluster.waits(f"team-b/{name}", "WaitingForQuota")
    page.type("queuectl top")
    page.type("queuectl explain team-b/eval")
    page.type("queuectl preempt")
    page.type("queuectl stop")
    demo_cluster.waits("team-b/probe", "LocalQueueStopped")
    page.type("queuectl explain team-b/probe")
    page.type("queuectl stop")
    page.type("queuectl resume")
    page.write("queues.yaml")
    page.type("queuectl apply -f queues.yaml")
    page.type("queuectl move")
    page.type("queuectl priority")
    page.type("queuectl hold")
    demo_cluster.runs("team-b/eval")
    # The figures are those of a week: tests/unit/test_docs_reports.py renders them.
    for begins in ("report usage", "report cost", "report waste", "eff", "report waits"):
        page.type(f"queuectl {begins}", shows=False)
    page.type("queuectl report budgets", shows=False)
    page.type("queuectl history")
    page.end()
    demo_cluster.remove("team-b", "train")  # there is room for sweep again
    say(demo_cluster, page)


def test_the_page_for_who_knows_slurm(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(
        [*configuration(), m.local_queue("team-a", "spare", "team-a")]
    )
    say(demo_cluster, Page("coming-from-slurm.md", shell))


def say(demo_cluster: DemoCluster, page: Page) -> None:
    """Type the commands of a page's sentences and tables. Some must wait for what those before them asked for."""
    for line in inline_commands(page.text):
        if line in NAMES or line in UNTRIED:
            continue
        if line.startswith("queuectl move"):
            page.shell.type("queuectl hold team-a/train --wait 60s")

        def taken(line: str = line) -> bool:
            return page.shell.type(line)[0] == 0

        demo_cluster.until(taken, f"{page.name}: {line}")


def test_commands_in_the_sentences_of_other_pages(demo_cluster: DemoCluster, shell: Shell) -> None:
    """On a cluster where what they name is there."""
    queue = m.cluster_queue("vision", "h100", {GPU: 16})
    demo_cluster.installation.rest.apply([*configuration(), queue])
    demo_cluster.installation.cluster.client.apply(
        namespace("ml"), account("ml", "operator"), account("default", "trainer")
    )
    demo_cluster.submit("team-a", "next-64", whole(8))
    demo_cluster.runs("team-a/next-64")
    # Those of kubectl.md need the aggregated API, which tests/operations/test_visibility.py has. Those of everyday-tasks.md are also of
    # other programs; tests/unit/test_docs_tasks.py parses those of queuectl.
    others = PAGES.keys() - {"coming-from-slurm.md", "team.md", "kubectl.md", "everyday-tasks.md"}
    lines = {line for name in others for line in inline_commands(PAGES[name].read_text())}
    failed = {}
    for line in sorted(lines - NAMES.keys() - UNTRIED.keys()):
        status, printed = shell.type(line)
        if status:
            failed[line] = printed
    assert failed == {}, f"{failed}\n{shell.errors}"


def test_no_list_here_is_longer_than_the_pages() -> None:
    lines = {line for path in PAGES.values() for line in inline_commands(path.read_text())}
    assert (NAMES.keys() | UNTRIED.keys()) - lines == set()


def test_pages_that_need_no_cluster(shell: Shell) -> None:
    why = Page("why.md", shell)
    why.type("queuectl plan")
    why.end()
    for planned in (
        Page("amd-intel.md", shell),
        Page("appwrapper.md", shell),
        Page("leaderworkerset.md", shell),
        Page("mig.md", shell),
        Page("numa.md", shell),
        Page("rayservice.md", shell),
        Page("shared-gpus.md", shell),
        Page("sparkapplication.md", shell),
    ):
        planned.type("queuectl plan")
        planned.end()
    pods = Page("pods.md", shell)
    pods.type("queuectl plan")
    pods.type("queuectl plan")
    pods.end()
    # Whether the figures come out so is a matter of tests/unit/test_docs_reports.
    reports = Page("reports.md", shell)
    for _ in range(9):
        reports.type("queuectl report", shows=False)
    reports.end()


def test_the_page_on_autoscaling(shell: Shell) -> None:
    """tests/operations/test_autoscaling.py has a gang whose nodes are made."""
    page = Page("autoscaling.md", shell)
    page.type("kubectl apply")
    page.end()
    status, printed = shell.type("kubectl delete -f deploy/optional/provisioning.yaml")
    assert status == 0, printed


WITHOUT_TEST: Final = {
    "benchmarks.md": "its measurements take minutes to hours",
    "runbook.md": "its command is the first one of on-call.md",
    "release.md": "the commands need a published release; tests/packaging checks the targets of make",
    "build-the-image.md": "tests/packaging builds the image and checks the targets of make",
    "contributing.md": "the commands of a contributor; tests/packaging checks the targets of make",
    "durations.md": "its measurement takes minutes",
    "kubectl.md": "tests/operations/test_visibility.py types its commands",
    "expected-starts.md": "its measurement takes minutes",
    "simulated-traces.md": "its measurements take hours",
    "shadow.md": "tests/operations/test_shadow.py runs shadow mode",
    "sizing.md": "its measurement takes minutes",
    "configuration-owner.md": "tests/api/test_configuration_owner.py confirms a deletion",
    "dashboard.md": "its command names an account of the reader",
    "notifications.md": "its receivers are those of the reader; tests/operations/test_notifications.py has some",
    "move-the-database.md": "tests/db/test_move.py moves a database",
    "preemption-by-others.md": "its commands name namespaces of the reader",
}
"""Pages whose commands no test types, with the reasons."""


def typed() -> Iterator[str]:
    """Pages whose commands some test types to the end."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if ".end(" in text:
            yield from re.findall(r'Page\(\s*"([^"]+)"', text)


def test_every_page_with_commands_is_typed() -> None:
    shown = {name for name, path in PAGES.items() if transcript(path.read_text())}
    assert shown - {"README.md"} - {*typed(), *KIND_PAGES} - WITHOUT_TEST.keys() == set()


def test_every_block_of_the_readme_is_somebodys() -> None:
    begins = [block.lstrip("\n") for block in code(PAGES["README.md"].read_text())]
    unknown = [block for block in begins if not block.startswith(tuple(BLOCKS))]
    assert unknown == []
    assert len(begins) == len(BLOCKS)
