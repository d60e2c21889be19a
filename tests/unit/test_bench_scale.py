"""The pure parts of the benchmark of whole systems: nodes, quota, fill, times from an audit log, tables and pictures."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from tests.bench.scale import pictures, rows_changes, rows_starts, tables
from tests.bench.scale.fill import PARTS, counts, fill_of, size_shares
from tests.bench.scale.fleet import GENERATIONS, HALL, NEWEST, Fleet, cluster_queue, split
from tests.bench.scale.gangs import Gang, plain_job, queued_job
from tests.bench.scale.records import RUNS, RowRecord, append, read_all
from tests.bench.scale.rows import CUT, DONE, NOT_OFFERED, Figure, selected
from tests.bench.scale.stage import PodLine
from tests.bench.scale.times import AuditLog, Timeline, percentile

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "benchmarks.md"


def test_the_sizes_are_exact_or_the_nearest_whole_racks() -> None:
    sizes = {wanted: Fleet(wanted).nodes for wanted in (100, 500, 2500, 5000, 10_000)}
    assert sizes == {100: 100, 500: 496, 2500: 2496, 5000: 4992, 10_000: 10_000}
    with pytest.raises(ValueError, match="at least 100 nodes, not 90"):
        Fleet(90)


def test_the_nodes_of_a_fleet() -> None:
    fleet = Fleet(10_000)
    specs = fleet.node_specs()
    assert (len(specs), sum(spec.count for spec in specs)) == (25, 10_000)
    assert {spec.racks_per_block for spec in specs} == {25}
    halls = Counter(dict(spec.labels)[HALL] for spec in specs)
    assert halls == {f"h{hall}": 5 for hall in range(5)}
    assert fleet.capacity() == {"a100": 32_000, "h100": 16_000, "h200": 16_000, "b200": 16_000}
    small = Fleet(100)
    names = [d["metadata"]["name"] for spec in small.node_specs() for d in spec.documents()]
    assert len(set(names)) == 100
    assert split(7, 3) == [3, 2, 2]


def test_quotas_are_the_capacity() -> None:
    for wanted in (100, 2500, 10_000):
        fleet = Fleet(wanted)
        quotas = fleet.quotas()
        assert len(quotas) == 40
        for flavor, capacity in fleet.capacity().items():
            assert sum(quota[flavor] for quota in quotas.values()) == capacity
    assert Fleet(10_000).owned == 2000
    kinds = Counter(document["kind"] for document in Fleet(100).configuration())
    assert kinds == {
        "Topology": 1,
        "ResourceFlavor": 4,
        "WorkloadPriorityClass": 3,
        "Cohort": 6,
        "ClusterQueue": 40,
        "LocalQueue": 40,
    }
    spec = cluster_queue("team", "dept", {"a100": 5})["spec"]
    assert spec["preemption"] == {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": "Any",
    }


def test_the_fill_has_three_quarters_of_the_gpus_and_the_sizes_of_the_trace() -> None:
    fleet = Fleet(10_000)
    fill = fill_of(fleet)
    assert (len(fill.gangs), fill.pods, fill.gpus) == (14_401, 15_260, 60_000)
    assert [phase[0].gpus for phase in fill.phases] == [8, 4, 2, 1]
    whole = sum(gang.all_gpus for gang in fill.gangs if gang.gpus == 8)
    assert whole / fill.gpus == pytest.approx(
        sum(share for size, share in size_shares().items() if size >= 8), abs=0.01
    )
    used = Counter[str]()
    for gang in fill.gangs:
        assert gang.product is not None
        used[gang.product] += gang.all_gpus
    for generation in GENERATIONS:
        blocks = fleet.blocks(generation)
        in_blocks = Counter[str]()
        for gang in fill.gangs:
            assert gang.block is not None
            if gang.block in blocks:
                in_blocks[gang.block] += gang.all_gpus
        assert max(in_blocks.values()) <= min(blocks.values())
        assert max(in_blocks.values()) - min(in_blocks.values()) <= 1
    assert used[NEWEST.product] == fleet.capacity()[NEWEST.flavor] * PARTS[NEWEST.flavor]
    assert len({gang.key for gang in fill.gangs}) == len(fill.gangs)
    assert fill_of(fleet) == fill
    assert sum(size * n for size, n in counts(1001, size_shares()).items()) == 1001


def test_other_departments_borrow_the_quota_of_the_owner() -> None:
    fleet = Fleet(10_000)
    quotas = {team: quota[NEWEST.flavor] for team, quota in fleet.quotas().items()}
    used = Counter[str]()
    for gang in fill_of(fleet).gangs:
        if gang.product == NEWEST.product:
            used[gang.team] += gang.all_gpus
    over = {team: used[team] - quotas[team] for team in used if used[team] > quotas[team]}
    assert used[fleet.owner] == 0
    assert 2000 <= sum(over.values()) < 2100
    gangs = rows_changes.owners_gangs(fleet)
    assert sum(gang.all_gpus for gang in gangs) == fleet.owned
    assert sum(gang.all_gpus for gang in rows_changes.owners_gangs(Fleet(100))) == Fleet(100).owned


def test_a_large_gang_fits_one_flavor_from_2500_nodes_on() -> None:
    assert rows_starts.largest_free_flavor(Fleet(500)) < 4096
    assert rows_starts.largest_free_flavor(Fleet(2500)) >= 4096


def test_the_same_job_with_and_without_a_queue() -> None:
    gang = Gang("g", "team", 2, 8, product="gpu", required="rack", priority="normal")
    queued, plain = queued_job(gang), plain_job(gang)
    assert queued["metadata"]["labels"]
    assert not plain["metadata"]["labels"]
    pods = [job["spec"]["template"]["spec"] for job in (queued, plain)]
    assert pods[0] == pods[1]
    assert pods[0]["nodeSelector"] == {"nvidia.com/gpu.product": "gpu"}
    assert "rack" not in json.dumps(plain)


# ---- Times


def _line(
    second: int, user: str, verb: str, resource: str, name: str, code: int = 201, part: str = ""
) -> str:
    at = f"2026-11-28T05:00:{second:02}.500000Z"
    space = "kube-node-lease" if resource == "leases" else "team"
    return json.dumps(
        {
            "kind": "Event",
            "verb": verb,
            "user": {"username": user, "groups": ["system:masters"]},
            "userAgent": "test",
            "objectRef": {
                "resource": resource,
                "namespace": space,
                "name": name,
                "subresource": part,
            },
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": at,
            "stageTimestamp": at,
        }
    )


KWOK = "system:serviceaccount:kube-system:kwok-controller"
SCHEDULER = "system:kube-scheduler"
LINES = (
    _line(1, "queuectl-localcluster-admin", "create", "jobs", "g"),
    _line(1, "queuectl-localcluster-admin", "create", "jobs", "refused", 409),
    _line(2, "system:serviceaccount:kube-system:job-controller", "create", "pods", ""),
    _line(2, "system:serviceaccount:queuectl-system:queuectl", "patch", "pods", "g-0-aaaaa", 200),
    _line(3, SCHEDULER, "create", "pods", "g-0-aaaaa", part="binding"),
    _line(4, SCHEDULER, "create", "pods", "g-1-bbbbb", part="binding"),
    _line(5, KWOK, "patch", "pods", "g-0-aaaaa", 200, part="status"),
    _line(6, KWOK, "patch", "pods", "g-0-aaaaa", 200, part="status"),
    _line(7, KWOK, "update", "leases", "node", 200),
    _line(8, SCHEDULER, "create", "events", "e"),
)


def test_times_and_writes_from_an_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    text = "\n".join(LINES) + "\n"
    file.write_text("ignored\n")
    log, timeline = AuditLog(file), Timeline()
    log.skip()
    for begin, end in ((0, 700), (700, 701), (701, len(text))):  # also a part of a line
        with file.open("a") as out:
            out.write(text[begin:end])
        timeline.follow(log.read_new())
    submitted = timeline.submitted["team/g"]
    assert timeline.submitted.keys() == {"team/g"}
    assert timeline.whole("team/g", 2) == submitted + 3
    assert timeline.whole("team/g", 3) is None
    assert timeline.whole("team/g", 1, running=True) == submitted + 4
    assert timeline.pods_bound(["team/g", "team/other"]) == 2
    assert timeline.by_writer() == {
        "kube-scheduler": 2,
        "KWOK": 2,
        "harness": 1,
        "Kubernetes controllers": 1,
        "queuectl": 1,
        "node leases": 1,
        "Events": 1,
    }
    assert timeline.refused == {("harness", 409): 1}
    assert timeline.all_writes() == 8
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert math.isnan(percentile([], 0.5))


# ---- Lost nodes, and what is free


def test_a_gang_is_repaired_when_all_its_pods_are_on_other_nodes() -> None:
    pods = [PodLine(f"g-{i}-x", "team/g", f"h0-{i}", 8, terminating=False) for i in range(3)]
    pods.append(PodLine("h-0-x", "team/h", "h2-1", 8, terminating=False))
    nodes = rows_changes.nodes_to_lose(Fleet(100), pods, 2)
    assert nodes == {"h0-0", "h0-1"}
    [gang] = rows_changes.lost_gangs(pods, nodes)
    timeline = Timeline()
    timeline.deleted["team/g"] = {"g-0-x": 1.0, "g-1-x": 1.0}
    timeline.bound["team/g"] = {"g-0-y": 5.0}
    assert gang.repaired_at(timeline) is None
    timeline.bound["team/g"]["g-1-y"] = 7.0
    assert gang.repaired_at(timeline) == 7.0
    assert gang.repair_seconds(timeline) is None
    timeline.removed["team/g"] = {"g-0-x": 4.0, "g-1-x": 6.5}
    assert gang.repair_seconds(timeline) == 0.5
    timeline.deleted["team/g"]["g-2-x"] = 8.0  # the gang is evicted as a whole
    assert gang.repaired_at(timeline) is None
    timeline.bound["team/g"]["g-2-y"] = 9.0
    assert gang.repaired_at(timeline) == 9.0


def test_a_gang_that_no_domain_has_room_for() -> None:
    fleet = Fleet(100)
    pods = [
        PodLine(f"p-{block}", "team/g", f"h{hall}-{block}-b0-r0-h{host}", 8, terminating=False)
        for hall in range(5)
        for block in range(5)
        for host in range(3 if block else 4)
    ]
    free = rows_starts.free_nodes(fleet, pods)
    assert sum(map(len, free.values())) == 20
    product, size = rows_starts.impossible(fleet, free)
    assert (product, size) == (NEWEST.product, 2)
    assert len(free[product]) == 4
    with pytest.raises(ValueError, match="no block that is empty"):
        rows_starts.impossible(fleet, rows_starts.free_nodes(fleet, pods[:2]))


# ---- Results


def _record(system: str, row: str, run: int, seconds: float, status: str = DONE) -> RowRecord:
    figures = (
        Figure("submitted to all pods bound", seconds, "s"),
        Figure("CPU: etcd", 2.0, "s"),
        Figure("nothing", math.nan, "s"),
    )
    shown = figures if status != NOT_OFFERED else ()
    return RowRecord(
        system, 2496 * run, row, run, status, shown, ("a note",), "abc", f"2026-11-2{run}", 1.0, {"machine": "m"}
    )  # fmt: skip


def test_records_become_tables_and_pictures(tmp_path: Path) -> None:
    file = tmp_path / "results" / "results.jsonl"
    records = [
        _record("floor", "b", 1, 10.0),
        _record("queuectl", "b", 1, 12.5, CUT),
        _record("queuectl", "b", 1, 11.0),
        _record("queuectl", "b", 2, 123.4),
        _record("floor", "c", 1, 0.0, NOT_OFFERED),
    ]
    for record in records:
        append(file, record)
    read = read_all([file])
    assert [record.system for record in read] == [record.system for record in records]
    text = tables.tables(read)
    assert "2,496 nodes, measured:" in text
    assert "4,992 nodes, use of resources:" in text
    assert "| (b) | submitted to all pods bound, s | 10 | 11.8 (12.5, 11) |" in text
    assert "| (b) |  |  | cut, done |" in text
    assert "| (b) | CPU: etcd, s | 2 | 2 (2, 2) |" in text
    assert "| (c) |  | not offered |" in text
    assert "| (b) |  |  |  |" not in text
    assert "- queuectl, 2,496 nodes, (b), run 1 cut: a note" in text
    [picture] = pictures.draw_all(read, tmp_path)
    assert picture.name == "scale-nodes.svg"
    titles = [e.text for e in ET.parse(picture).iter() if e.tag.endswith("title")]
    assert "queuectl: 11 s" in titles, "12.5 s is of a run that was cut"
    assert tables.number(0.01234) == "0.0123"


def test_the_page_has_each_run_of_a_figure_in_the_order_of_time() -> None:
    records = [
        _record("queuectl", "b", 1, 123.4),
        _record("floor", "b", 1, 10.0),
        _record("queuectl", "b", 1, math.nan, CUT),
        _record("queuectl", "b", 1, 11.0, CUT),
    ]
    text = tables.page(records)
    assert "| 2,496 nodes |  | no controller | queuectl |" in text
    assert "| b | one gang: submission to all pods bound | 10 | 123; cut; 11 (cut) |" in text
    assert "| queuectl | 2026-11-21 | abc | b, b | 1 |" in text
    assert "| c |" not in text


def test_the_tables_of_the_documentation_are_those_of_the_recorded_runs() -> None:
    text = PAGE.read_text()
    for table in tables.page(read_all([RUNS])).split("\n\n"):
        assert table.strip() in text, "python -m tests.bench.scale table prints them"


def test_rows_by_letter() -> None:
    assert [row.letter for row in selected("b, a")] == ["b", "a"]
    assert {"a", "b", "c", "d", "e"} <= {row.letter for row in selected("")}
    with pytest.raises(ValueError, match="no row z"):
        selected("a,z")
