"""The report of shadow mode over REST, as a page, on the dashboard and on the command line."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli.main import run
from queuectl.domain.identity import Right
from queuectl.domain.shadow import GangName, Observation, UnboundGang, WaitingGang
from queuectl.domain.shadow_trace import FigureInterval, QueueWaits, SideFigures, SimulatedReport
from queuectl.shadow.folding import fold
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.conftest import talking_to
from tests.api.serving import serving
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people
from tests.api.support import FixedHealth
from tests.doubles.shadow import MemoryShadowTables
from tests.doubles.store import MemoryStore

PATH = "/api/v1/reports/shadow"
MARKUP = "<script>alert(1)</script>"


def name(uid: str, gpus: float = 8.0) -> GangName:
    return GangName(uid, "team-a", f"job-{uid}", "Job", "train", "pool", gpus, 1)


def recorded() -> MemoryStore:
    """An hour in which one gang fitted for ten minutes, one waited for quota, and one had no node."""
    store = MemoryStore()
    tables: MemoryShadowTables = store.database.shadow
    begin = time.time() // 3600 * 3600 - 3600
    for number in range(11):
        at = begin + 60.0 * number
        waiting = (
            WaitingGang(name("fits"), 8.0),
            WaitingGang(name("waits", 32.0), None, "WaitingForQuota", f"16 {MARKUP} short"),
        )
        unbound = (UnboundGang(name("stuck"), begin - 60.0, 1, 4.0),)
        left_out = (f"Workload/team-a/{MARKUP}: is broken",)
        observation = Observation(at, 64.0, 16.0, waiting, unbound, left_out=left_out)
        step = fold(tables.last, observation, tables.gangs, 180.0)
        tables.last = step.last
        tables.gangs |= {one.gang.uid: one for one in step.gangs}
        for hour, sums in step.hours.items():
            tables.hours[hour] = tables.hours[hour] + sums if hour in tables.hours else sums
    tables.simulated = simulated_report(begin)
    return store


def simulated_report(begin: float) -> SimulatedReport:
    """Half the waiting time, and the same utilization within its interval."""

    def side(wait: float, most: float | None) -> SideFigures:
        waits = QueueWaits(
            FigureInterval(wait, wait + 60.0),
            FigureInterval(wait, most),
            FigureInterval(0.0, float(most is None)),
        )
        use = FigureInterval(0.5, 0.75 if most is None else 0.7)
        none = FigureInterval(0.0, 0.0)
        return SideFigures(
            waits, {f"team-a/{MARKUP}": waits}, FigureInterval(7200.0, 7200.0), use, none
        )

    return SimulatedReport(
        began=begin,
        until=begin + 3600.0,
        made_at=begin + 3700.0,
        took=1.0,
        gangs=1200,
        arrived={f"team-a/{MARKUP}": 1100},
        running_at_begin=100,
        unfinished=7,
        left_out=3,
        resized=2,
        gaps=1800.0,
        whole=False,
        observed=side(7200.0, None),
        simulated=side(3600.0, 5000.0),
    )


async def answer(token: str | None, *rights: Right, path: str = PATH, **query: str) -> Any:
    access = people()
    access.know("of-the-tenant", "tenant", *rights)
    app = create_app(
        recorded(),
        FixedHealth(),
        MetricsRecorder().registry,
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )
    async with asking(app, token) as client:
        return await client.get(path, params={"since": "3h", **query})


async def test_the_sums_of_the_period() -> None:
    body = (await answer(ADMIN)).json()
    total = body["observed"]["total"]
    assert total["observedHours"] == total["fittingHours"] == pytest.approx(1 / 6, abs=1e-5)
    assert total["freeWhileFittingGpuHours"] == pytest.approx(16 / 6, abs=1e-4)
    assert total["startableGpuHours"] == pytest.approx(8 / 6, abs=1e-4)
    assert total["unboundGpuHours"] == pytest.approx(4 / 6, abs=1e-4)
    assert (total["gpus"], total["freeGpus"]) == (64.0, 16.0)
    assert [one["code"] for one in total["reasons"]] == ["WaitingForQuota"]
    [hour] = body["observed"]["hours"]
    assert hour["sums"] == total
    assert body["limits"]


async def test_the_gangs_that_could_have_run_come_first() -> None:
    observed = (await answer(ADMIN)).json()["observed"]
    assert [one["name"] for one in observed["gangs"]] == ["job-fits", "job-stuck", "job-waits"]
    fits, stuck, waits = observed["gangs"]
    assert fits["fitsSince"] == fits["firstSeen"]
    assert (stuck["state"], waits["state"]) == ("Unbound", "Waiting")
    assert (waits["fitsSince"], waits["fittedHours"]) == (None, 0.0)
    assert observed["gangCount"] == 3


async def test_the_simulated_report_is_separate_with_both_sides_and_their_difference() -> None:
    body = (await answer(ADMIN)).json()["simulated"]
    assert body["total"]["p50Hours"] == {
        "observed": {"least": 2.0, "most": pytest.approx(2.016667)},
        "simulated": {"least": 1.0, "most": pytest.approx(1.016667)},
        "difference": "Lower",
    }
    assert body["total"]["p95Hours"]["observed"] == {"least": 2.0, "most": None}
    assert body["utilization"]["difference"] == body["idleGpuHours"]["difference"] == "None"
    [queue] = body["queues"]
    assert (queue["queue"], queue["gangs"]) == (f"team-a/{MARKUP}", 1100)
    assert (body["whole"], body["gapHours"], body["leftOut"], body["resized"]) == (False, 0.5, 3, 2)
    assert any("react" in sentence for sentence in body["limits"])


async def test_without_a_simulation_there_is_only_the_observed_report() -> None:
    store = recorded()
    store.database.shadow.simulated = None
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    add_dashboard(app, store, app.state.guard, in_shadow=True)
    async with talking_to(app) as client:
        body = (await client.get(PATH, params={"since": "3h"})).json()
        page = (await client.get(f"{PATH}/page", params={"since": "3h"})).text
        shown = (await client.get("/ui/shadow")).text
    assert body["simulated"] is None
    assert body["observed"]["gangCount"] == 3
    assert "SIMULATED" not in page
    assert "No simulation yet" in shown


async def test_a_period_without_observations_is_empty() -> None:
    body = (await answer(ADMIN, since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z")).json()
    assert body["observed"]["total"]["observedHours"] == 0.0
    assert body["observed"]["hours"] == []
    assert body["lastObservation"] is not None


@pytest.mark.parametrize("path", [PATH, f"{PATH}/page"])
async def test_the_report_names_gangs_of_all_namespaces_and_needs_the_right(path: str) -> None:
    assert (await answer(NO_RIGHTS, path=path)).status_code == 403
    tenant = Right("get", "reports", "team-a")
    assert (await answer("of-the-tenant", tenant, path=path)).status_code == 403
    everywhere = Right("get", "reports")
    assert (await answer("of-the-tenant", everywhere, path=path)).status_code == 200


async def test_the_page_loads_nothing_and_escapes_names() -> None:
    page = await answer(ADMIN, path=f"{PATH}/page")
    assert page.headers["content-type"].startswith("text/html")
    assert "team-a/job-fits" in page.text
    assert MARKUP not in page.text
    assert "1.00 to 1.02" in page.text
    assert "1,200 gangs" in page.text
    assert "&lt;script&gt;" in page.text
    for loads in ("src=", "http://", "https://", "@import", "<link"):
        assert loads not in page.text


@pytest.mark.parametrize("in_shadow", [False, True])
async def test_the_dashboard_has_the_page_in_shadow_mode(in_shadow: bool) -> None:
    store = recorded()
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    add_dashboard(app, store, app.state.guard, in_shadow=in_shadow)
    async with talking_to(app) as client:
        page = (await client.get("/ui/shadow")).text
    assert ('href="/ui/shadow"' in page) is in_shadow
    assert "job-waits" in page
    assert "none that the records show" in page
    assert MARKUP not in page


# ---- The command line


@pytest.fixture
def server() -> Iterator[str]:
    with serving(recorded()) as address:
        yield address


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """The exit code and the output of ``queuectl report``."""
    monkeypatch.setattr("sys.argv", ["queuectl", "report", *arguments])
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_command_prints_a_table_json_csv_and_a_page(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def output(*options: str) -> str:
        given = ("shadow", "--since", "3h", "--server", server, *options)
        code, text = printed(monkeypatch, capsys, *given)
        assert code == 0
        return text

    table = output()
    assert "GPU-hours free while a waiting gang fitted: 2.7" in table
    assert "team-a/job-fits" in table
    assert "at least 2.0" in table
    assert "it ends before the last observation" in table
    assert json.loads(output("-o", "json"))["observed"]["gangCount"] == 3
    rows = list(csv.DictReader(io.StringIO(output("-o", "csv"))))
    assert [row["name"] for row in rows] == ["job-fits", "job-stuck", "job-waits"]
    assert rows[2]["reasons"].startswith("WaitingForQuota 0.16")
    assert output("-o", "html").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "arguments",
    [("shadow", "--by", "queue"), ("usage", "-o", "html"), ("efficiency", "-o", "html")],
)
def test_options_that_a_report_does_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert printed(monkeypatch, capsys, *arguments) == (2, "")
