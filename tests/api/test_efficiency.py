"""The efficiency of the cluster over REST and on the command line, on one cluster map."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli.main import run
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.identity import Right
from queuectl.domain.utilization import GangUse, UseState
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.serving import serving
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people
from tests.api.support import FixedHealth, FixedLookout
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, holding, node, podset, resources, world
from tests.support.counted import map_of

PATH = "/api/v1/reports/efficiency"
MODEL = "nvidia.com/gpu.product"
TENANT = "of-the-tenant"


def cluster() -> ClusterMap:
    """A node of each kind, and a gang that is not measured."""
    h100, a100 = ({MODEL: name} for name in ("H100", "A100"))
    nodes = [
        node("n1", gpu=8, labels=h100),
        replace(node("n2", gpu=7, labels=h100), failed=resources(gpu=1)),
        replace(node("n3", gpu=8, labels=h100), unschedulable=True),
        node("n4", gpu=4, labels=a100),
        node("cpu-only", cpu=64),
    ]
    admitted = [
        holding(gang("busy", podset(count=1, gpu=8)), {"n1": 1}),
        holding(gang("silent", podset(count=1, gpu=4)), {"n4": 1}),
    ]
    uses = {"busy": GangUse("busy", 1, UseState.ACTIVE, 0.0, 0.0, 0.5, 1.0, "")}
    return map_of(world(nodes, [], admitted), uses)


async def answer(
    token: str | None, *rights: Right, known: ClusterMap | None, by: str | None = None
) -> Any:
    access = people()
    access.know(TENANT, "tenant", *rights)
    app = create_app(
        MemoryStore(),
        FixedHealth(),
        MetricsRecorder().registry,
        cluster_reader=FixedLookout(known),
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )
    async with asking(app, token) as client:
        return await client.get(PATH, params={"by": by} if by is not None else {})


async def test_the_parts_of_all_gpus_add_up_to_the_total() -> None:
    found = (await answer(ADMIN, known=cluster())).json()
    total = found["total"]
    parts = ("idle", "fragmented", "unhealthy", "unallocated")
    wasted = sum(total[f"{part}Gpus"] for part in parts)
    assert total["wastedGpus"] == pytest.approx(wasted)
    assert total["totalGpus"] == total["effectiveGpus"] + total["wastedGpus"] + total["unknownGpus"]
    assert found["items"] == [total]
    assert (total["totalGpus"], total["effectiveGpus"], total["unknownGpus"]) == (28.0, 4.0, 4.0)
    assert (total["unhealthyGpus"], total["idleGpus"]) == (9.0, 4.0)
    assert total["efficiency"] == pytest.approx(4 / 28, abs=1e-6)
    assert total["highestEfficiency"] == pytest.approx(8 / 28, abs=1e-6)


async def test_a_node_label_divides_the_gpus() -> None:
    found = (await answer(ADMIN, known=cluster(), by=MODEL)).json()
    assert (found["by"], found["total"]["value"]) == (MODEL, None)
    assert {item["value"]: item["totalGpus"] for item in found["items"]} == {
        "A100": 4.0,
        "H100": 24.0,
    }


async def test_a_label_that_no_node_has_gives_one_item_without_a_value() -> None:
    found = (await answer(ADMIN, known=cluster(), by="rack-of-the-future")).json()
    assert [(item["value"], item["totalGpus"]) for item in found["items"]] == [("", 28.0)]


async def test_a_cluster_without_gpus_has_no_efficiency() -> None:
    found = (await answer(ADMIN, known=map_of(world([node("n", cpu=8)]), {}))).json()
    assert (found["items"], found["total"]["efficiency"]) == ([], None)


async def test_only_callers_that_may_get_all_reports_are_answered() -> None:
    everywhere, in_one = Right("get", "reports"), Right("get", "reports", "team-a")
    assert (await answer(TENANT, everywhere, known=cluster())).status_code == 200
    for token, rights in ((TENANT, (in_one,)), (NO_RIGHTS, ())):
        assert (await answer(token, *rights, known=cluster())).status_code == 403
    assert (await answer(None, known=cluster())).status_code == 401


async def test_without_a_snapshot_the_report_is_a_problem() -> None:
    found = await answer(ADMIN, known=None)
    assert (found.status_code, found.json()["type"].rpartition("/")[2]) == (503, "not-known-yet")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(MemoryStore(), cluster_reader=FixedLookout(cluster())) as address:
        yield address


def printed(
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
) -> tuple[int, str, str]:
    monkeypatch.setattr(
        "sys.argv", ["queuectl", "report", "efficiency", "--server", server, *arguments]
    )
    with pytest.raises(SystemExit) as ended:
        run()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_table_has_a_row_for_each_value_and_the_range_of_the_efficiency(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = printed(server, monkeypatch, capsys, "--by", MODEL)
    head, units, titles, *rows = (line.split() for line in out.splitlines())
    assert (code, head[:3]) == (0, ["efficiency", "by", f"{MODEL},"])
    assert units[-7:] == ["idle", "+", "fragmented", "+", "unhealthy", "+", "unallocated"]
    assert titles[1:4] == ["TOTAL", "EFFECTIVE", "WASTED"]
    assert [row[:4] for row in rows] == [
        ["A100", "4.0", "0.0", "0.0"],
        ["H100", "24.0", "4.0", "20.0"],
        ["total", "28.0", "4.0", "20.0"],
    ]
    assert [" ".join(row[9:]) for row in rows] == ["0% to 100%", "17%", "14% to 29%"]


def test_without_a_label_the_table_is_one_row(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = printed(server, monkeypatch, capsys)
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["NODES", "TOTAL"],
        ["total", "28.0"],
    ]


def test_csv_has_all_fields(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = printed(server, monkeypatch, capsys, "--by", MODEL, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["value"], row["unhealthyGpus"]) for row in rows] == [
        ("A100", "0.0"),
        ("H100", "9.0"),
    ]


def test_a_period_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = printed(server, monkeypatch, capsys, "--since", "24h")
    assert (code, "--since and --until do not apply" in err) == (2, True)
