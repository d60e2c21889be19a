"""Small settings for simulations: nodes and queues as documents, jobs as lines of a trace."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from queuectl.objects.documents import read_documents
from queuectl.offline.inputs import read_snapshot
from queuectl.simulate.outcomes import PolicyOutcome
from queuectl.simulate.report import simulate
from queuectl.simulate.setting import Setting, make_setting
from queuectl.simulate.simulation import Durations, Order, PlacementRule, Policy
from queuectl.simulate.trace import read_events, read_trace
from tests.traces.clusters import virtual_clusters

ROOT = Path(__file__).parents[2]
SLICE = ROOT / "tests/fixtures/traces/itp_2021_cluster_03.csv.gz"
HEADER = "submit_s,duration_s,nodes_or_pods,gpus_per_pod,queue"


def setting(
    nodes: Mapping[str, int],
    jobs: bytes | str,
    *,
    events: str = "",
    cohort: str | None = None,
    everywhere: Collection[str] = (),
    preemption: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    topology: bool = True,
    more: Sequence[Mapping[str, Any]] = (),
    begins: float | None = None,
) -> Setting:
    """Queues with this number of nodes of 8 GPUs each, and the jobs of a trace. ``more``: other documents."""
    documents = [*virtual_clusters(nodes, cohort, everywhere), *map(dict, more)]
    for document in documents:
        if document["kind"] == "ResourceFlavor" and not topology:
            del document["spec"]["topologyName"]
        if document["kind"] == "ClusterQueue":
            document["spec"] |= {"preemption": preemption} if preemption else {}
            document["spec"] |= {"policy": policy} if policy else {}
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    snapshot = read_snapshot(read_documents(json.dumps(listed).encode(), "cluster.json")).snapshot
    data = jobs.encode() if isinstance(jobs, str) else jobs
    changes = read_events(events.encode(), "events.csv")
    jobs_read = read_trace(data, "trace.csv")
    return make_setting(snapshot, "trace.csv", jobs_read, changes, begins=begins)


def trace(*rows: str, more: str = "") -> str:
    """The text of a trace. ``more``: names of columns after those that each trace has."""
    return "\n".join([HEADER + ("," + more if more else ""), *rows]) + "\n"


def outcome(
    given: Setting,
    placement: PlacementRule,
    order: Order | None = None,
    durations: Durations = Durations.DECLARED,
) -> PolicyOutcome:
    return simulate(given, Policy(placement, order, durations))


def waits(found: PolicyOutcome) -> list[float]:
    """Of finished jobs, in the order of their submission."""
    return [run.waited for run in found.runs if run.finished_at is not None]
