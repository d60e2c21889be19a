"""Usage from a team to its users and their jobs, compared with the period before, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.domain.accounting import HOUR, Amounts, Subject
from queuectl.domain.identity import Right
from queuectl.web.pages import usage
from tests.api.conftest import talking_to
from tests.support.gpu_seconds import GpuSeconds
from tests.web.conftest import FixedRights, app_over
from tests.web.records import CONFIGURATION
from tests.web.sample import NOW, Sample

LAST = int(NOW // HOUR) * HOUR
LINK = re.compile(r'<tr><td class="wide"><a href="([^"]+)">([^<]*)</a>')


def held(gpu_hours: float, *, known: bool = True, used: float = 0.5) -> Amounts:
    """GPU-hours of one hour."""
    seconds = gpu_hours * HOUR
    return GpuSeconds(
        allocated=seconds, used=seconds * used if known else 0.0, unknown=0.0 if known else seconds
    ).units()


def charged(sample: Sample, user: str, hours_ago: int, amounts: Amounts, number: int = 0) -> None:
    """One more hour of a job of this user in team-vision; the ledger begins four days ago."""
    subject = Subject(
        *(f"more-{number}-{user}", "Job", "team-vision", f"more-{number}", "default", "vision"),
        user=user,
    )
    tables = sample.database.usage
    tables.subjects[subject.id] = subject
    tables.hours[LAST - hours_ago * HOUR, subject.id, "h100", ""] = amounts


async def configured(sample: Sample, settings: dict[str, Any], revision: int) -> None:
    """Other settings. The application is shared by all tests and knows the configuration by its revision."""
    sample.database.revision = revision
    await sample.store.put_config({**CONFIGURATION, "queuectl": settings})


@pytest.fixture
def quiet(sample: Sample) -> Sample:
    """A ledger without usage that began four days ago."""
    tables = sample.database.usage
    tables.hours.clear()
    tables.losses.clear()
    (_, fleet) = next(iter(tables.fleet.items()))
    tables.fleet[LAST - 96 * HOUR, "h100"] = fleet
    return sample


def groups(page: str) -> Iterator[tuple[str, str]]:
    """Name and address of each group with a link."""
    for address, name in LINK.findall(page[page.index('id="groups"') :]):
        yield unescape(name), unescape(address)


async def test_a_team_leads_to_its_users_and_they_to_their_jobs_in_the_same_period(
    pages: httpx2.AsyncClient,
):
    top = (await pages.get("/ui/usage?span=168h&by=namespace")).text
    team = dict(groups(top))["team-vision"]
    assert team == "/ui/usage?by=user&span=168h&namespace=team-vision"
    users = (await pages.get(team)).text
    assert 'aria-current="page">team-vision<' in users
    assert {name for name, _ in groups(users)} <= {"ann", "ben", "cleo", "(none)"}
    user = dict(groups(users))["ann"]
    assert user == "/ui/usage?by=workload&span=168h&namespace=team-vision&user=ann"
    jobs = (await pages.get(user)).text
    assert all(address.startswith("/ui/workloads/") for _, address in groups(jobs))
    assert all(name.startswith("team-vision/") for name, _ in groups(jobs))
    assert f'<a href="{team.replace("&", "&amp;")}">team-vision</a>' in jobs
    assert '<a href="/ui/usage?by=namespace&amp;span=168h">All</a>' in jobs


async def test_a_queue_and_days_lead_on_too_and_a_user_without_a_name_is_one(
    pages: httpx2.AsyncClient,
):
    days = "from=2026-11-17&to=2026-11-18"
    top = (await pages.get(f"/ui/usage?by=clusterqueue&{days}")).text
    queue = dict(groups(top))["vision"]
    assert queue == f"/ui/usage?by=user&span=days&{days}&queue=vision"
    unnamed = dict(groups((await pages.get(queue)).text))["(none)"]
    assert unnamed == f"/ui/usage?by=workload&span=days&{days}&queue=vision&user="
    jobs = [name for name, _ in groups((await pages.get(unnamed)).text)]
    assert jobs
    everybody = (await pages.get(f"/ui/usage?by=workload&{days}&queue=vision")).text
    assert set(jobs) < {name for name, _ in groups(everybody)}


async def test_a_group_is_compared_with_the_period_before(quiet: Sample, pages: httpx2.AsyncClient):
    for user, now, before in (
        ("ann", 12.0, 10.0),
        ("ben", 5.0, 10.0),
        ("cleo", 3.0, 3.0),
        ("dan", 1.0, 0.0),
        ("eve", 90.0, 3.0),
    ):
        charged(quiet, user, 2, held(now))
        if before:
            charged(quiet, user, 26, held(before))
    text = (await pages.get("/ui/usage?by=user")).text
    rows = re.findall(r'data-h="than before">([^<]*)<', text)
    assert rows == ["▲ 30 times as much", "▲ 20% more", "▼ 50% less", "= the same", "new"]
    assert "▲ 327% more; before: 26.0" in text
    assert "Compared with the preceding 1 d" in text


@pytest.mark.parametrize(
    ("span", "keep", "reason"),
    [
        ("168h", 400, "Usage is recorded since 2026-11-14 11:00 UTC, so it is not compared"),
        ("168h", 10, "Usage is kept for 10 days, so it is not compared"),
    ],
)
async def test_a_period_before_that_is_not_in_the_ledger_is_not_compared(
    quiet: Sample, pages: httpx2.AsyncClient, span: str, keep: int, reason: str
):
    charged(quiet, "ann", 2, held(8))
    charged(quiet, "bob", 1000, Amounts(waited=1))  # it was pending before queuectl was installed
    await configured(quiet, {"accounting": {"keepDays": keep}}, 100 + keep)
    text = (await pages.get(f"/ui/usage?span={span}")).text
    assert reason in text
    assert "than before" not in text
    assert "before: " not in text


async def test_a_period_before_without_usage_is_named(quiet: Sample, pages: httpx2.AsyncClient):
    charged(quiet, "ann", 2, held(8))
    assert "none in the period before" in (await pages.get("/ui/usage")).text


async def test_an_efficiency_names_the_part_that_was_measured(
    quiet: Sample, pages: httpx2.AsyncClient
):
    charged(quiet, "ann", 2, held(35, used=0.9))
    charged(quiet, "ann", 3, held(65, known=False))
    text = (await pages.get("/ui/usage?by=user")).text
    assert 'data-h="efficiency">90% of 35% measured<' in text
    assert "was measured</strong>" not in text


async def test_a_period_without_measurements_states_that_first(
    quiet: Sample, pages: httpx2.AsyncClient
):
    charged(quiet, "ann", 2, held(8, known=False))
    text = (await pages.get("/ui/usage?by=user")).text
    assert text.index("No GPU-hour of this period was measured") < text.index('class="stats"')
    assert 'data-h="efficiency">not measured<' in text


async def test_the_course_marks_what_is_incomplete(quiet: Sample, pages: httpx2.AsyncClient):
    charged(quiet, "ann", 1, held(8))
    charged(quiet, "ann", 30, held(4))
    text = (await pages.get("/ui/usage?span=168h")).text
    course = text[text.index('id="course"') : text.index('id="groups"')]
    assert course.count("<g") == 2
    assert course.count('<g class="partial"') == 1
    assert (
        'title="2026-11-18 00:00:00 UTC">2026-11-18</time> <span class="tag">incomplete' in course
    )
    assert 'id="course"' not in (await pages.get("/ui/usage?namespace=nowhere")).text


async def test_the_file_has_the_rows_of_the_page_and_no_formula(
    quiet: Sample, pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    users = ("=HYPERLINK(1)", "+1", "-2", "@x", "\tx", 'a"b,c', "ann", "")
    for number, user in enumerate(users):
        charged(quiet, user, 2, held(9 - number))
        charged(quiet, user, 26, held(1.5))
    monkeypatch.setattr(usage, "SHOWN", 7)
    page = (await pages.get("/ui/usage?by=user")).text
    answer = await pages.get("/ui/usage/csv?by=user")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].endswith(
        '"usage-by-user-2026-11-17-2026-11-18.csv"'
    )
    assert answer.headers["cache-control"] == "no-store"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    named = ["'=HYPERLINK(1)", "'+1", "'-2", "'@x", "x", 'a"b,c', "ann", "1 other", "Total"]
    assert [row["user"].removeprefix("'\t") for row in rows] == named
    allocated = [float(row["GPU-hours allocated"]) for row in rows]
    assert allocated == [9, 8, 7, 6, 5, 4, 3, 2, 44]
    assert [row["efficiency"] for row in rows] == ["0.5"] * 9
    before = [row["allocated in the period before"] for row in rows]
    assert before == ["1.5"] * 7 + ["", "12.0"]
    shown = re.findall(r"<strong>([0-9.]+)</strong>", page[page.index('id="groups"') :])
    assert [float(text) for text in shown] == allocated[:-1]


async def test_others_and_a_total_state_no_workloads_where_one_can_have_several_rows(
    quiet: Sample, pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(usage, "SHOWN", 1)
    for hours_ago in (1, 2, 3):
        charged(quiet, "ann", hours_ago, held(2.0))
    address = "/ui/usage{}?by=user,hour&span=24h"
    page = unescape((await pages.get(address.format(""))).text)
    cells = re.findall(r'data-h="workloads">([^<]*)</td>', page)
    assert cells == ["1", "-"]
    lines = [*csv.DictReader(io.StringIO((await pages.get(address.format("/csv"))).text))]
    assert [line["workloads"] for line in lines] == ["1", "", ""]
    assert [line["GPU-hours allocated"] for line in lines] == ["2.0", "4.0", "6.0"]


async def test_the_file_needs_the_right_of_the_page_and_has_its_namespaces_only(
    sample: Sample, tenant: httpx2.AsyncClient
):
    assert (await tenant.get("/ui/usage/csv")).status_code == 403
    rights = FixedRights(
        Right("list", "workloads", "team-vision"), Right("get", "reports", "team-vision")
    )
    async with talking_to(app_over(sample, Guard(rights))) as viewer:
        text = (await viewer.get("/ui/usage/csv?by=workload&span=168h")).text
        assert "team-vision/" in text
        assert "team-speech" not in text
        other = await viewer.get("/ui/usage/csv?by=workload&span=168h&namespace=team-speech")
        assert [line.partition(",")[0] for line in other.text.splitlines()] == ["workload", "Total"]


async def test_names_of_the_scope_are_never_markup(pages: httpx2.AsyncClient):
    answer = await pages.get("/ui/usage", params={"user": '"><script>', "namespace": "<b>"})
    assert answer.status_code == 200
    assert "<script>" not in answer.text
    assert "<b>" not in answer.text


@pytest.mark.parametrize(
    ("query", "since", "until"),
    [
        ("span=month", "2026-11-01 00:00", "2026-11-18 12:00"),
        ("span=lastmonth", "2026-10-01 00:00", "2026-11-01 00:00"),
        ("from=2026-11-16", "2026-11-16 00:00", "2026-11-19 00:00"),
        ("span=24h&from=2026-11-16&to=2026-11-16", "2026-11-16 00:00", "2026-11-17 00:00"),
    ],
)
async def test_any_period_can_be_chosen(
    pages: httpx2.AsyncClient, query: str, since: str, until: str
):
    text = (await pages.get(f"/ui/usage?{query}")).text
    lead = re.sub("<[^>]+>", "", text[text.index('class="lead') :].partition("</p>")[0])
    assert f"From {since} UTC to {until} UTC" in lead


async def test_without_prices_the_page_names_where_to_set_them(
    sample: Sample, pages: httpx2.AsyncClient
):
    await configured(sample, {}, 600)
    text = (await pages.get("/ui/usage")).text
    assert "No cost is shown" in text
    assert "/ui/config?kind=configurations" in text
    assert "Cost, " not in text
    assert "cost" not in (await pages.get("/ui/usage/csv")).text.splitlines()[0]


async def test_a_page_of_too_many_jobs_states_what_to_ask_for(
    pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.doubles.usage.MOST_COMPARED", 1)
    answer = await pages.get("/ui/usage?by=workload&span=month")
    assert answer.status_code == 422
    assert "more than 1 rows; ask for fewer hours" in unescape(answer.text)
    assert (await pages.get("/ui/usage?by=user&span=month")).status_code == 200
