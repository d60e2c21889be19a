"""Published traces with their nodes, and the mean waits that an independent implementation of the reference rule gives."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queuectl.objects.documents import read_documents
from queuectl.offline.inputs import read_snapshot
from queuectl.simulate.setting import Setting, make_setting
from queuectl.simulate.simulation import Order
from queuectl.simulate.trace import read_trace
from tests.traces.clusters import virtual_clusters

PHILLY = "philly-2017/philly_2017_sep_oct.csv.gz"
PHILLY_NODES = "philly-2017/philly_vc_nodes.csv"
RECLAIM = {"reclaimWithinCohort": "Any"}
ITP = "itp-2021/itp_2021_clusters_02_03_05_07_10.csv.gz"


@dataclass(frozen=True)
class Scenario:
    """A trace on nodes.

    Attributes:
        name: of the trace and the nodes.
        trace: path below the folder of the traces.
        nodes: by virtual cluster. Jobs of other virtual clusters are left out.
        reference: mean wait in seconds that an independent implementation gives, by strategy; empty without one.
        shared: all virtual clusters are in one cohort, share all nodes, and take their quota back.
    """

    name: str
    trace: str
    nodes: Mapping[str, int]
    reference: Mapping[Order, float]
    shared: bool = False

    def setting(self, folder: Path, rule: Mapping[str, Any] | None = None) -> Setting:
        """Nodes, queues and jobs. ``rule``: ``spec.policy`` of the ClusterQueues."""
        items = virtual_clusters(self.nodes, "all" if self.shared else None)
        for item in items:
            if item["kind"] == "ClusterQueue":
                item["spec"] |= {"policy": rule} if rule else {}
                item["spec"] |= {"preemption": RECLAIM} if self.shared else {}
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        given = read_snapshot(read_documents(json.dumps(listed).encode(), self.name))
        jobs = read_trace((folder / self.trace).read_bytes(), self.trace)
        return make_setting(given.snapshot, self.trace, jobs)


def scenarios(folder: Path) -> Iterator[Scenario]:
    """``folder``: of the traces, with the sizes of Philly's virtual clusters."""
    with (folder / PHILLY_NODES).open() as lines:
        sizes = {row["queue"]: int(row["nodes"]) for row in csv.DictReader(lines)}
    means = {1: (123, 82, 70), 2: (5_712, 3_604, 2_341), 4: (151_970, 57_000, 16_917)}
    for part, (fifo, backfill, sjf) in means.items():
        nodes = {name: max(1, count // part) for name, count in sizes.items()}
        name = f"Philly, {'all nodes' if part == 1 else f'1/{part} of the nodes'}"
        yield Scenario(name, PHILLY, nodes, _means(fifo, backfill, sjf))
        yield Scenario(f"{name}, one cohort", PHILLY, nodes, {}, shared=True)
    yield Scenario("ITP 03, 20 nodes", ITP, {"cluster03": 20}, _means(269_554, 212_568, 46_905))
    yield Scenario("ITP 07, 36 nodes", ITP, {"cluster07": 36}, _means(48_720, 19_675, 8_017))
    for number, count in (("02", 12), ("03", 30), ("05", 2), ("10", 2)):
        yield Scenario(f"ITP {number}, {count} nodes", ITP, {f"cluster{number}": count}, {})


def _means(fifo: float, backfill: float, sjf: float) -> dict[Order, float]:
    return {Order.STRICT_FIFO: fifo, Order.BEST_EFFORT_FIFO: backfill, Order.SJF: sjf}
