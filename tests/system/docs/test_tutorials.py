"""The commands of the tutorials print what the pages show. tests/system/test_demo.py starts and ends the demo they run on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.demo.scenario import configuration
from tests.system.demo_cluster import DemoCluster
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]

DEMO = ("make demo", "queuectl demo --down")
"""Commands of each tutorial that tests/system/test_demo.py runs."""


@contextmanager
def demo_queues(demo_cluster: DemoCluster, page: Page, *teams: str) -> Iterator[Page]:
    """A page on the queues of the demo. Afterwards the namespaces that it creates have no jobs, and each command was typed."""
    demo_cluster.installation.rest.apply(configuration())
    try:
        yield page
    finally:
        for team in teams:
            demo_cluster.remove(team)
    page.end(*DEMO)


def test_the_first_ten_minutes(demo_cluster: DemoCluster, shell: Shell) -> None:
    with demo_queues(demo_cluster, Page("first-ten-minutes.md", shell)) as page:
        page.type("queuectl get localqueues")
        page.type("queuectl get clusterqueues")
        page.type("grep")
        page.type("kubectl create")
        demo_cluster.runs("team-a/train")
        page.type("queuectl explain team-a/train")
        page.type("sed 's/name")
        page.type("kubectl create -f wide.yaml")
        demo_cluster.waits("team-a/wide", "ShapeNeverFits")
        page.type("kubectl get pods", shows=False)  # on standard error
        page.type("queuectl explain team-a/wide")
        page.type("kubectl delete -f wide.yaml")
        page.type("sed -i")
        page.type("queuectl whatif")
        page.type("kubectl create -f wide.yaml")
        demo_cluster.runs("team-a/wide")
        page.type("queuectl get workloads")
        page.type("queuectl history")
        page.type("kubectl delete job")
        page.type("rm")


def test_the_queue_for_a_team(demo_cluster: DemoCluster, shell: Shell) -> None:
    with demo_queues(demo_cluster, Page("team-queue.md", shell), "vision") as page:
        page.type("sed 's/nominalQuota")
        page.type("queuectl apply --dry-run")
        page.type("queuectl apply -f queues.yaml")
        page.write("team.yaml")
        page.type("kubectl create namespace")
        page.type("queuectl apply -f team.yaml")
        page.type("kubectl create rolebinding leads")
        page.type("kubectl create rolebinding members")
        page.type("sed 's/team-a")
        page.type("kubectl create -f train.yaml")
        demo_cluster.runs("vision/train")
        page.type("queuectl explain vision/train")
        page.type("queuectl get priorityclasses")
        page.type("sed 's/name: train")
        page.type("queuectl whatif")
        page.type("kubectl create -f eval.yaml")
        demo_cluster.runs("vision/eval")
        demo_cluster.waits("vision/train", "WaitingForQuota")
        page.type("queuectl get workloads")
        page.type("queuectl history")
        page.type("queuectl stop")
        page.type("kubectl delete -f eval.yaml")
        demo_cluster.waits("vision/train", "LocalQueueStopped")
        page.type("queuectl explain vision/train")
        page.type("queuectl resume")
        demo_cluster.runs("vision/train")
        page.type("queuectl explain vision/train")
        report = "queuectl report usage --by workload --since 1h"
        gang = re.compile(r"^vision +train ", re.MULTILINE)
        demo_cluster.until(
            lambda: gang.search(page.shell.type(report)[1]) is not None, "the report has the gang"
        )
        page.type("queuectl report")
        page.type("kubectl delete namespace")
        page.type("queuectl delete")
        page.type("rm")
        page.type("queuectl apply -f docs/examples/queues.yaml")


def test_the_fair_shared_cluster(demo_cluster: DemoCluster, shell: Shell) -> None:
    with demo_queues(
        demo_cluster, Page("fair-shared-cluster.md", shell), "vision", "speech"
    ) as page:
        page.write("cohort.yaml")
        page.write("vision.yaml")
        page.type("sed 's/vision")
        page.type("sed 's/nominalQuota")
        page.type("kubectl create namespace vision")
        page.type("kubectl create namespace speech")
        page.type("queuectl apply -f queues.yaml")
        page.write("gang.yaml")
        page.type("for n in")
        demo_cluster.runs(*(f"vision/train-{number}" for number in range(1, 5)))
        page.type("queuectl top")
        page.type('sed "s/NAME/asr')
        demo_cluster.waits("speech/asr", "WaitingToReclaim")
        page.type("queuectl explain speech/asr")
        demo_cluster.runs("speech/asr")
        page.type("queuectl get workloads")
        demo_cluster.waits("vision/train-4", "WaitingForQuota")
        page.type("queuectl history")
        page.type('sed "s/NAME/tts')
        demo_cluster.waits("speech/tts", "WaitingForQuota")
        page.type("queuectl explain speech/tts")
        page.type("queuectl apply -f docs/examples/fair.yaml")
        demo_cluster.runs("speech/tts")
        page.type("queuectl explain speech/tts")
        page.type('sed "s/NAME/lm')
        demo_cluster.waits("speech/lm", "WaitingForQuota")
        page.type("queuectl get workloads -n speech --state Pending")
        page.type("sed -i")
        page.type("queuectl apply -f speech.yaml")
        demo_cluster.runs("speech/lm")
        demo_cluster.waits("vision/train-2", "WaitingForQuota")
        page.type("queuectl top")
        page.type("kubectl delete jobs")
        page.type('sed "s/NAME/night')
        page.type("queuectl whatif -f night.yaml")
        page.type("sed 's/nominalQuota: 16")
        page.type("queuectl whatif -f keeps.yaml", status=4)
        page.type("kubectl delete namespace")
        page.type("queuectl delete -f speech.yaml")
        page.type("rm")
        page.type("queuectl delete configuration")
        page.type("queuectl apply -f docs/examples/queues.yaml")
