"""My jobs: the first page of a tenant, their own jobs, and advice for each reason. Sorting, and the table of pods."""

from __future__ import annotations

import re
from html import unescape

import httpx2
import pytest

from queuectl.api.auth.authentication import OpenPaths
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import SortKey, WorkloadOrder
from queuectl.domain.reasons import NEXT_STEPS, PENDING_REASONS, Code
from queuectl.web.actions import next_step
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from queuectl.web.pages import mine
from queuectl.web.pods import MOST, pod_table
from queuectl.web.words import TableColumn, headings
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.web.sample import Sample

TENANT = "of-the-tenant"


async def page(sample: Sample, token: str, path: str) -> httpx2.Response:
    """A page of a dashboard whose users sign in; the tenant ``ann`` may list the workloads of one namespace."""
    access = people()
    access.know(TENANT, "ann", Right("list", "workloads", "team-vision"))
    app = signed_app(sample.store, access, open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with asking(app, token) as client:
        return await client.get(path)


@pytest.mark.parametrize(("token", "first"), [(TENANT, "/ui/mine"), (ADMIN, "/ui/")])
async def test_the_first_page_of_a_tenant_is_their_jobs(sample: Sample, token: str, first: str):
    assert (await page(sample, token, "/ui/home")).headers["location"] == first


async def test_a_tenant_sees_their_own_jobs_in_visible_namespaces(sample: Sample):
    text = (await page(sample, TENANT, "/ui/mine")).text
    own = [e for e in sample.database.entries.values() if e.user == "ann" and e.state is not State.FINISHED]  # fmt: skip
    visible = {entry.ref for entry in own if entry.namespace == "team-vision"}
    assert visible
    assert all(f">{ref}<" in text for ref in visible)
    assert all(f">{entry.ref}<" not in text for entry in own if entry.ref not in visible)


async def test_an_empty_user_shows_all_jobs_of_the_namespace(sample: Sample):
    text = (await page(sample, TENANT, "/ui/mine?user=&namespace=team-vision")).text
    others = [e for e in sample.database.entries.values() if e.user != "ann" and e.namespace == "team-vision"]  # fmt: skip
    assert all(f">{entry.ref}<" in text for entry in others if entry.state is not State.FINISHED)
    assert "team-speech" not in text


async def test_the_links_of_the_list_of_a_namespace_keep_the_jobs_of_all_users(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mine, "_MOST", 2)
    text = (await page(sample, TENANT, "/ui/mine?user=&namespace=team-vision")).text
    links = [unescape(link) for link in re.findall(r'href="(\?[^"]*)"', text)]
    assert any("cursor=" in link for link in links)
    for link in links:
        answer = await page(sample, TENANT, f"/ui/mine{link}")
        assert '<input name="user" value=""' in answer.text, link
        assert '<input type="hidden" name="sort"' in answer.text or "sort=-urgency" in link


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("user=zoe", "zoe has no queued or running jobs."),
        ("user=&namespace=team-new", "Namespace team-new has no queued or running jobs."),
        ("user=zoe&namespace=team-new", "zoe has no queued or running jobs in namespace team-new."),
    ],
)
async def test_a_list_without_jobs_names_whose_jobs_it_would_have(
    sample: Sample, asked: str, sentence: str
):
    text = (await page(sample, ADMIN, f"/ui/mine?{asked}")).text
    assert sentence in re.sub("<[^>]+>", "", text)


@pytest.mark.parametrize("code", sorted(PENDING_REASONS))
def test_each_pending_reason_has_advice(code: Code):
    assert next_step(State.PENDING, code) == NEXT_STEPS[code]


def test_a_failed_job_leads_to_its_logs():
    assert "logs" in next_step(State.FINISHED, Code.FAILED)
    assert next_step(State.FINISHED, Code.SUCCEEDED) == ""


def test_a_heading_sorts_its_column_and_then_reverses_the_order():
    columns = (
        TableColumn("GPUs", SortKey.GPUS, numeric=True),
        TableColumn("Name", SortKey.NAME),
        TableColumn("Age", SortKey.SINCE, numeric=True, elapsed=True),
        TableColumn("Kind"),
    )
    by_gpus = headings(columns, WorkloadOrder.parse("-gpus"), {"user": "ann", "state": ()})
    assert [one.address for one in by_gpus] == [
        "?user=ann&sort=gpus",
        "?user=ann&sort=name",
        "?user=ann&sort=since",
        None,
    ]
    assert [one.aria_sort for one in by_gpus] == ["descending", None, None, None]
    by_age = headings(columns, WorkloadOrder.parse("since"), {})
    assert by_age[2].aria_sort == "descending"  # the smallest time is the longest ago
    assert by_age[2].address == "?sort=-since"


def pod(rank: int, **fields: object) -> PodRecord:
    values: dict[str, object] = {
        "podset": "w",
        "attempt": 1,
        "ready": True,
        "phase": PodPhase.RUNNING,
    }
    return PodRecord("a", f"p-{rank}", f"u-{rank}", 1, rank=rank, **(values | fields))  # type: ignore[arg-type]


def test_pods_that_do_not_run_are_among_the_rows_of_a_large_gang():
    entry = Entry("u", "Job", "a", "train", State.RUNNING, attempt=1)
    broken = pod(511, ready=False, status_reason="CrashLoopBackOff")
    table = pod_table(entry, [*(pod(rank) for rank in range(511)), broken])
    assert (table.total, len(table.rows), table.broken) == (512, MOST, 1)
    assert table.rows[0].reason == "CrashLoopBackOff"
    assert [row.name for row in table.rows[1:4]] == ["p-0", "p-1", "p-2"]
    assert table.phases == (("Running", 512),)


def test_a_pod_of_an_earlier_start_names_that_start():
    entry = Entry("u", "Job", "a", "train", State.STARTING, attempt=2)
    (row,) = pod_table(entry, [pod(0, terminating=True)]).rows
    assert (row.phase, row.reason) == ("Terminating", "of start 1")
