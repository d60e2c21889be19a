"""``queuectl plan -f`` for inputs that reports of other schedulers and mistakes of users are about.

Each input is a file of ``edges/``, an object in a line. The table states the starts with their nodes, the evictions, and the reasons of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app

FILES: Final = Path(__file__).parent / "edges"
EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"


@dataclass(frozen=True)
class Edge:
    """An input and its right answer.

    Attributes:
        file: its name in ``edges/``.
        starts: workload to its nodes with the number of pods; nothing else starts.
        evicts: the workloads that are evicted.
        moves: the workloads that migrate.
        waits: workload to the code of its reason and parts of its message.
        blocked: workload to the first words of each of its blocking constraints.
        fixes: workload to a suggested fix.
        ahead: the workloads with a planned start.
        ignored: parts of the reasons of the objects that are not planned.
        error: parts of the message if the input is refused.
    """

    file: str
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    evicts: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixes: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    error: tuple[str, ...] = ()


PREEMPTS: Final = ("WaitingForPreemptedWorkloads",)
NO_ROOM: Final = "TopologyPlacementFailed"
NEVER: Final = "ShapeNeverFits"

EDGES: Final = {
    # ---- lost work
    "of two gangs of CPUs the newest is evicted": Edge(
        "cpu-victim-newest", evicts=("ns/b-new",), waits={"ns/hi": PREEMPTS}
    ),
    "of two gangs of CPUs the one that loses less is evicted": Edge(
        "cpu-victim-smallest", evicts=("ns/b-small",), waits={"ns/hi": PREEMPTS}
    ),
    "the checkpoint of a gang of CPUs counts": Edge(
        "cpu-victim-checkpoint", evicts=("ns/b-saved",), waits={"ns/hi": PREEMPTS}
    ),
    "of two gangs of TPUs the newest is evicted": Edge(
        "tpu-victim-newest", evicts=("ns/b-new",), waits={"ns/hi": PREEMPTS}
    ),
    "of two gangs of Gaudi the newest is evicted": Edge(
        "gaudi-victim-newest", evicts=("ns/b-new",), waits={"ns/hi": PREEMPTS}
    ),
    # ---- what the API server adds or refuses
    "a request of the pod below those of its containers is refused": Edge(
        "pod-level-below-containers",
        waits={"ns/w": ("Misconfigured", "less than its containers request together")},
    ),
    "the overhead of a RuntimeClass counts": Edge(
        "runtime-class-overhead", waits={"ns/w": ("ExceedsMaxQuota", "3 cpu of flavor f")}
    ),
    "the node selector of a RuntimeClass counts": Edge(
        "runtime-class-node-selector", starts={"ns/w": {"n2": 1}}
    ),
    "a pod holds what the kubelet has allocated": Edge(
        "resized-pod", waits={"ns/w": (NO_ROOM, "pods without a queue hold 4 of 4")}
    ),
    "GPUs without a limit are refused": Edge(
        "gpu-in-requests-only", error=("(Job/w)", "limits.nvidia.com/gpu: is required")
    ),
    "GPUs of the pod as a whole are refused": Edge(
        "gpus-at-pod-level", error=("(Job/w)", "cpu, memory and hugepages only")
    ),
    "a toleration that a plugin adds is declared, or the flavor has it": Edge(
        "extended-resource-toleration", waits={"ns/w": (NEVER, "no node is eligible")}
    ),
    # ---- pods that ended
    "a completed index frees its quota and node": Edge(
        "completed-index", starts={"ns/w2": {"n1": 1}}
    ),
    "a failed index frees its quota and node": Edge("failed-index", starts={"ns/w2": {"n1": 1}}),
    "only the pods that are left are requested": Edge(
        "partly-succeeded-job", starts={"team-a/part": {"r0-h0": 1, "r0-h1": 1}}
    ),
    # ---- objects that are not planned
    "a queue label of the template only": Edge(
        "label-on-template", ignored=("it has no queue label; only its pod template has one",)
    ),
    "a queue in an annotation": Edge(
        "queue-as-annotation", ignored=("it has no queue label; an annotation names the queue",)
    ),
    "a Deployment without its pods": Edge(
        "deployment-draft", ignored=("it exists, and its pods are not in the input",)
    ),
    "a Deployment without its pods, with the queue label of its template": Edge(
        "deployment-label-on-template", ignored=("it exists, and its pods are not in the input",)
    ),
    "a key that appears twice": Edge(
        "duplicate-key", error=("'nominalQuota' appears twice, first on line",)
    ),
    "labels that appear twice": Edge("duplicate-labels", error=("'labels' appears twice",)),
    # ---- what is short
    "CPUs that a DaemonSet holds": Edge(
        "cpu-held-by-daemonset", waits={"ns/w": (NO_ROOM, "lacks cpu (7500m free; DaemonSets hold 500m of 8)")}
    ),
    "memory that other pods hold": Edge(
        "memory-short", waits={"ns/w": (NO_ROOM, "lacks memory (24Gi free; pods without a queue hold")}
    ),
    "CPUs that other pods hold": Edge(
        "cpu-held-by-other-pods", waits={"ns/w": (NO_ROOM, "lacks cpu (1 free; pods without a queue hold 95 of 96)")}
    ),
    "more CPUs than a node has": Edge(
        "more-cpu-than-a-node", waits={"ns/w": (NEVER, "1 node has less than 100 cpu (at most 96)")}
    ),
    "nodes that lack different resources": Edge(
        "mixed-nodes", waits={"ns/w": (NO_ROOM, "10 nodes lack nvidia.com/gpu", "10 nodes lack cpu")}
    ),
    "a taint and a node without memory": Edge(
        "taint-and-memory", waits={"ns/w": (NO_ROOM, "on 1 eligible node: 1 node lacks memory")}
    ),
    "pods that together ask for more than a node": Edge(
        "pods-of-one-node", waits={"ns/w": (NEVER, "less than 128 cpu (at most 96)")}
    ),
    "a gang of CPUs on a node with GPUs": Edge(
        "cpu-gang-on-a-gpu-node", waits={"ns/w": (NO_ROOM, "lacks cpu (8 free; ns/c holds 8 of 16)")}
    ),
    "an elastic gang grows in its rack only": Edge(
        "elastic-in-a-rack",
        waits={f"ns/e_{n}": (NO_ROOM, "in one rack; no rack has room", "ns/e holds 16 of 16") for n in range(2, 6)},
    ),
    # ---- what passes
    "a device with a taint": Edge(
        "tainted-device",
        waits={"ns/w": (NO_ROOM, "it waits for n1 (device gpu.example.com/n1/gpu-1 has the taint")},
        blocked={"ns/w": ("node health: 1 otherwise eligible node is unavailable in part: n1 (device",)},
    ),
    "a device with a taint, and a pod that needs two": Edge(
        "tainted-device-of-a-pod", waits={"ns/w": (NO_ROOM, "it waits for n1 (device gpu.example.com/n1/gpu-1 has")}
    ),
    "a device that a plain pod holds": Edge(
        "device-of-a-plain-pod",
        waits={"ns/w": (NO_ROOM, "pods of no gang hold gpu.example.com/n1/gpu-0")},
        blocked={"ns/w": ("running: pods of no gang hold gpu.example.com/n1/gpu-0",)},
        fixes={"ns/w": "add 1 node like n1"},
    ),
    "a device that its plugin reports as unhealthy": Edge(
        "unhealthy-device",
        waits={"ns/w": (NO_ROOM, "it waits for n1 (1 nvidia.com/gpu unhealthy)"), "ns/w2": ("WaitingInOrder",)},
        blocked={"ns/w": ("node health: 1 otherwise eligible node is unavailable in part: n1 (1 nvidia.com/gpu",)},
        fixes={"ns/w": "repair or uncordon 1 node: n1 (1 nvidia.com/gpu unhealthy)"},
    ),
    "a start-up taint": Edge(
        "start-up-taint",
        waits={"ns/w": (NO_ROOM, "it waits for n2 (taint node.cloudprovider"), "ns/w2": ("WaitingInOrder", "behind ns/w")},
    ),
    "a QuotaOverride of tomorrow": Edge(
        "quota-override-tomorrow",
        waits={"ns/w": ("WaitingForQuota", "2026-11-21T09:00:00Z"), "ns/w2": ("WaitingInOrder", "behind ns/w")},
    ),
    "quota that follows a cordoned node": Edge(
        "quota-from-cordoned-nodes",
        waits={"ns/w": ("WaitingForQuota", "it waits for n2 (cordoned)"), "ns/w2": ("WaitingInOrder", "behind ns/w")},
    ),
    "quota of a lender that follows a cordoned node": Edge(
        "quota-of-a-lender-from-cordoned-nodes",
        waits={
            "ns/w": ("WaitingForQuota", "quota of its cohort follows the nodes, and it waits for n2 (cordoned)"),
            "ns/w2": ("WaitingInOrder", "behind ns/w"),
        },
        fixes={"ns/w": "repair or uncordon 1 node: n2 (cordoned)"},
    ),
    # ---- fixes
    "the holders of the flavor that has nodes": Edge(
        "flavor-without-nodes",
        waits={"ns/w": ("WaitingForQuota",)},
        blocked={"ns/w": ("running: 1 gang holds 8 of 8 nvidia.com/gpu on eligible nodes: ns/r",)},
    ),
    "a gang that would pass a head needs no quota for the head": Edge(
        "quota-and-nodes-behind-a-head",
        waits={"ns/w": (NO_ROOM, "it waits for n2"), "ns/w2": ("ExceedsMaxQuota", "8 more")},
        fixes={
            "ns/w2": "add 2 nodes like n1, and add 8 nvidia.com/gpu of flavor f to the nominal quota of ClusterQueue cq, "
            "and raise the priority to 1 or more"
        },
    ),
    # ---- CPUs alongside GPUs
    "a gang of CPUs leaves nodes with GPUs free": Edge(
        "cpu-gang-avoids-gpu-nodes", starts={"ns/c": {"b-cpu": 1}}
    ),
    "a gang of CPUs leaves nodes with GPUs free if all nodes have the same CPUs": Edge(
        "cpu-gang-equal-nodes", starts={"ns/c": {"b-cpu": 1}}
    ),
    "a gang of CPUs leaves nodes free that have devices in ResourceSlices": Edge(
        "cpu-gang-avoids-published-devices", starts={"ns/c": {"b-cpu": 1}}
    ),
    # ---- levels that no node has
    "an unknown level of pods without requests": Edge(
        "unknown-level-without-requests", starts={"ns/ok": {"n1": 1}}, waits={"ns/w": (NEVER, "no rak has an eligible node")}
    ),
    "a level that no node has": Edge(
        "level-that-no-node-has", waits={"ns/w": (NEVER, "no rack has"), "ns/ok": (NEVER, "no node is eligible")}
    ),
    "a level without labels": Edge("level-without-labels", waits={"team/j": (NEVER, "no rack has")}),
    "slices of nodes without names": Edge(
        "slices-of-nodes-without-names", starts={"ns0/w0": {"n3": 1}}
    ),
    "nodes with GPUs that have no labels yet": Edge(
        "unlabeled-gpu-nodes", starts={"ns2/ok": {}}, waits={"ns/w": (NEVER, "no rack has an eligible node")}
    ),
    "a flavor that is scaled to zero": Edge(
        "flavor-scaled-to-zero", waits={"team/j": (NO_ROOM, "1 node lacks nvidia.com/gpu")}
    ),
    # ---- claims
    "a claim without requests": Edge(
        "claim-without-requests", starts={"ns/w": {"n1": 1}, "ns/ok": {"n1": 1}}
    ),
    "a claim that a gang which never fits names first": Edge(
        "shared-claim", starts={"team/urgent": {"n0": 1}}, waits={"team/toolarge": ("ExceedsMaxQuota",)}
    ),
    # ---- lost nodes
    "a lost node and jobs that match no flavor": Edge(
        "lost-node-and-wrong-jobs",
        starts={"ns/ok": {"n2": 1}},
        evicts=("ns/low",),
        waits={"ns/high": PREEMPTS, "ns/bad": ("NoMatchingFlavor",), "ns/bad2": ("NoMatchingFlavor",)},
    ),
    "a lost node and quota that its owner takes back": Edge(
        "lost-node-and-reclaim",
        starts={"team/r0": {"n3": 1}, "team/owner": {"n2": 1}},
        evicts=("team/r1",),
        waits={"team/typo": ("NoMatchingFlavor",)},
    ),
    "a lost node of two gangs": Edge(
        "repair-evicts-a-broken-gang", evicts=("team/low",), waits={"team/high": PREEMPTS}
    ),
    # ---- gangs that do not migrate
    "gangs with admission checks do not migrate": Edge(
        "gangs-with-checks", waits={"team-a/pretrain": (NO_ROOM, "at most 4 free")}
    ),
    "an elastic gang does not migrate": Edge(
        "elastic-beside-another",
        moves=("team-a/tune-1",),
        waits={"team-a/pretrain": PREEMPTS, "team-a/grows_1": ("WaitingForPods",)},
    ),
    # ---- queue order
    "a gang that never fits delays none in its queue": Edge(
        "never-fits-delays-none",
        starts={"team/a": {"n0": 1}},
        waits={"team/huge": ("ExceedsMaxQuota", "84 more"), "team/b": (NO_ROOM,)},
    ),
    "StrictFIFO with two flavors": Edge(
        "strict-with-two-flavors", waits={"team/head": (NO_ROOM,), "team/behind": ("WaitingInOrder", "behind team/head")}
    ),
    "a stopped LocalQueue": Edge(
        "stopped-local-queue", starts={"team/free": {"n0": 1}}, waits={"team/held": ("LocalQueueStopped",)}
    ),
    "StrictFIFO in a Cohort with Backfill": Edge(
        "strict-in-a-backfill-cohort",
        starts={"team/small": {"n0": 1}},
        ahead=("team/big",),
        waits={"team/big": ("WaitingForQuota",)},
    ),
    "a planned start with an even spread": Edge(
        "balanced-planned-start", ahead=("team/big",), waits={"team/big": ("WaitingForQuota",)}
    ),
    "the gang after one that waits for its checks has no planned start": Edge(
        "checks-in-a-backfill-queue",
        waits={"team/first": ("WaitingForAdmissionChecks",), "team/second": ("WaitingForQuota",)},
    ),
    "fair sharing in a Cohort with Backfill": Edge(
        "fair-sharing-in-a-backfill-cohort",
        waits={"team/first": (NO_ROOM,), "team/second": ("WouldDelayPlannedStart", "behind team/first")},
    ),
    "a gang that would delay a planned start": Edge(
        "would-delay",
        ahead=("team/big",),
        waits={"team/big": ("WaitingForQuota",), "team/small": ("WouldDelayPlannedStart", "a run of at most 3840 s would not")},
    ),
    # ---- amounts
    "the end of a Budget": Edge(
        "end-of-a-budget", starts={"team/small": {"n1": 1}}, evicts=("other/low",), waits={"team/large": PREEMPTS}
    ),
    "more memory than a number holds": Edge(
        "memory-beyond-a-number", waits={"team/js": ("Misconfigured", "memory is too large")}
    ),
    "an elastic gang before a larger one": Edge(
        "elastic-starts-before", starts={"team/elastic": {"n0": 2}}, waits={"team/big": ("WaitingForQuota",)}
    ),
    "an elastic gang that grows before a larger one": Edge(
        "elastic-grows-before", starts={"team/elastic": {"n0": 1, "n1": 2}}, waits={"team/big": ("WaitingForQuota",)}
    ),
}  # fmt: skip


def run(file: str) -> Any:
    """The JSON of the plan, or the message with which it is refused."""
    given = [FILES / f"{file}.yaml"]
    if file == "partly-succeeded-job":
        given += [EXAMPLES / "nodes.yaml", EXAMPLES / "queues.yaml"]
    paths = [part for path in given for part in ("-f", str(path))]
    result = CliRunner().invoke(app, ["plan", *paths, "-o", "json"])
    return json.loads(result.stdout) if result.exit_code == 0 else result.output


def placed(listed: list[Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for gang in listed:
        nodes = found.setdefault(gang["workload"], {})
        for podset in gang["podSets"]:
            for node, pods in (podset.get("nodes") or {}).items():
                nodes[node] = nodes.get(node, 0) + pods
    return found


def named(listed: list[Any]) -> tuple[str, ...]:
    return tuple(sorted(one["workload"] for one in listed))


def test_each_input_is_in_the_table() -> None:
    assert {path.stem for path in FILES.glob("*.yaml")} == {edge.file for edge in EDGES.values()}


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
def test_an_input_at_the_edge_has_its_answer(edge: Edge) -> None:
    answer = run(edge.file)
    if edge.error:
        assert all(part in answer for part in edge.error), answer
        return
    assert not isinstance(answer, str), answer
    assert placed(answer["admitted"]) == edge.starts
    assert named(answer["preempted"]) == edge.evicts
    assert named(answer.get("moves", [])) == edge.moves
    assert named([gang for gang in answer["pending"] if "plannedStart" in gang]) == edge.ahead
    reasons = {gang["workload"]: gang["reasons"][0] for gang in answer["pending"]}
    codes = {name: reason["code"] for name, reason in reasons.items()}
    assert codes == {name: said[0] for name, said in edge.waits.items()}
    for name, (_, *parts) in edge.waits.items():
        assert all(part in reasons[name]["message"] for part in parts), reasons[name]["message"]
    pending = {gang["workload"]: gang for gang in answer["pending"]}
    for name, blocked in edge.blocked.items():
        messages = [each["message"] for each in pending[name]["conflict"]]
        assert len(messages) == len(blocked)
        assert all(map(str.startswith, messages, blocked)), messages
    for name, fix in edge.fixes.items():
        assert fix in [each["message"] for each in pending[name]["suggestedFixes"]]
    assert len(answer["ignored"]) == len(edge.ignored)
    for each, part in zip(answer["ignored"], edge.ignored, strict=True):
        assert part in each["reason"]
