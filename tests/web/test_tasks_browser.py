"""Ten everyday tasks in a real Chromium: the clicks that each needs from the first page of a signed-in administrator.

The table :data:`TASKS` is the source of the queuectl column of docs/explanation/dashboard-tasks.md.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import pytest
from playwright.async_api import Locator, Page, expect

from queuectl.api.auth.authentication import OpenPaths
from queuectl.domain.accounting import HOUR
from queuectl.domain.commands import Action
from queuectl.domain.ledger import Entry, State
from queuectl.domain.plan import Cost
from queuectl.domain.reasons import Code
from queuectl.domain.what_if import Preview
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from queuectl.web.log_streams import PodLogs
from tests.api.signed import ADMIN, people, signed_app
from tests.doubles.pod_logs import MemoryLog, MemoryPod, MemoryPodLogs
from tests.support.pages import PAGES
from tests.web.browser import NoBrowser, open_page, running, served
from tests.web.sample import NOW, Sample, make

TASKS: Final = {
    "See why a pending job does not start": ("job: **Reason**", 1),
    "See when it is expected to start": ("job: **Waiting time**", 1),
    "Find a job by a part of its name": ("`/`, then type the part", 0),
    "See the nodes and pods of a running job, and which pod fails": ("job: **Placement**, **Pods**", 1),
    "Read the log of a failing pod": ("job > **Read log**", 2),
    "Stop one job, and see before how much work is lost": ("job > **Actions** > **Hold** > **Hold**", 4),
    "Hold five jobs": ("**All pending gangs** > five boxes > **Continue** > **Hold**", 8),
    "See how much of its GPU quota a team uses": ("**Overview**: **ClusterQueues**", 0),
    "Get the GPU-hours of one user in the last month as a file": ("**Usage** > **Last month** > **By user** > **Download CSV**", 4),
    "See who changed the quota of a queue": ("ClusterQueue > **Configuration**", 2),
}  # fmt: skip
"""Each task, in the order of the page: the way, and its clicks."""
PEER_CELL: Final = re.compile(r"not offered|not documented|.+ \(\d+\)")
LATEST_CHANGE: Final = "nominalQuota 512 to 640"
LAST_MONTH: Final = int(NOW // HOUR) * HOUR - 30 * 24 * HOUR


@dataclass
class Walk:
    """A way through the pages, from the first one. Typing and scrolling do not count."""

    page: Page
    clicks: int = 0

    async def click(self, target: Locator) -> None:
        """Select a link, a button, a field, an option or a checkbox."""
        await target.click()
        self.clicks += 1

    async def find(self, entry: Entry) -> Locator:
        """The suggestion for a part of a name that is typed."""
        await self.page.keyboard.press("/")
        await self.page.keyboard.type(entry.name[2:])
        option = self.page.get_by_role("option").filter(has_text=entry.ref)
        await expect(option).to_be_visible()
        return option

    async def open_job(self, entry: Entry) -> None:
        await self.click(await self.find(entry))
        await expect(self.page.get_by_role("heading", level=1, name=entry.ref)).to_be_visible()

    def panel(self, title: str) -> Locator:
        return self.page.get_by_role("region", name=title, exact=True)


@dataclass
class Dashboard:
    """The pages of a signed-in administrator over the small sample."""

    sample: Sample
    page: Page

    @asynccontextmanager
    async def task(self, name: str) -> AsyncIterator[Walk]:
        """Start a task on the first page, and compare its clicks with the table."""
        await self.page.goto("/ui/home")
        await expect(self.page.get_by_role("heading", level=1)).to_have_text("Overview")
        walk = Walk(self.page)
        yield walk
        assert walk.clicks == TASKS[name][1], name
        self.done.append(name)

    def __post_init__(self) -> None:
        self.done: list[str] = []

    def entry(self, state: State, code: Code | None = None) -> Entry:
        """A workload in this state, for this reason."""
        entries = self.sample.database.entries.values()
        return next(e for e in entries if e.state is state and code in (None, e.reason.code))


@asynccontextmanager
async def signed_in(sample: Sample, logs: MemoryPodLogs) -> AsyncIterator[Page]:
    store, diagnoser = sample.store, sample.diagnoser
    paths = OpenPaths(OPEN, SIGN_IN)
    app = signed_app(store, people(), diagnoser, secure=False, open_paths=paths)
    add_dashboard(
        app,
        store,
        app.state.guard,
        sample.cluster_reader,
        diagnoser,
        signs_in=True,
        pod_logs=PodLogs(logs),
        clock=lambda: NOW,
    )
    try:
        async with served(app) as address, running() as browser:
            page = await open_page(browser, address)
            await page.goto("/ui/signin")
            await page.get_by_label("Token").fill(ADMIN)
            await page.keyboard.press("Enter")
            await expect(page.locator("#live")).to_have_text("live")
            yield page
    except NoBrowser as error:
        pytest.skip(str(error))


def account_last_month(sample: Sample, user: str) -> None:
    """Give a user an hour of usage in the last month."""
    usage = sample.database.usage
    subjects = {subject.id for subject in usage.subjects.values() if subject.user == user}
    (_, subject, flavor, price), amounts = next(
        (key, amounts) for key, amounts in usage.hours.items() if key[1] in subjects and key[2]
    )
    usage.hours[LAST_MONTH, subject, flavor, price] = amounts


@pytest.mark.browser
async def test_ten_everyday_tasks_need_the_clicks_of_the_table() -> None:
    sample, logs = make(), MemoryPodLogs()
    account_last_month(sample, "ann")
    async with signed_in(sample, logs) as page:
        dashboard = Dashboard(sample, page)
        await _see_jobs(dashboard, logs)
        await _give_commands(dashboard)
        await _account(dashboard)
        assert dashboard.done == list(TASKS)


async def _see_jobs(dashboard: Dashboard, logs: MemoryPodLogs) -> None:
    pending = dashboard.entry(State.PENDING, Code.WAITING_FOR_QUOTA)
    broken = dashboard.entry(State.RUNNING, Code.WAIT_FOR_RECOVERY)
    failing = f"{broken.name}-worker-5"
    assert broken.placement is not None
    logs.pods[broken.namespace, failing] = MemoryPod(
        f"{broken.uid}-5", {"main": MemoryLog(b"CUDA error: out of memory\n")}
    )
    async with dashboard.task("See why a pending job does not start") as walk:
        await walk.open_job(pending)
        await expect(walk.panel("Reason")).to_contain_text(pending.reason.message)
    async with dashboard.task("See when it is expected to start") as walk:
        await walk.open_job(pending)
        await expect(walk.page.locator(".stats")).to_contain_text("expected start: in about")
    async with dashboard.task("Find a job by a part of its name") as walk:
        await expect(await walk.find(broken)).to_contain_text(broken.ref)
    async with dashboard.task(
        "See the nodes and pods of a running job, and which pod fails"
    ) as walk:
        await walk.open_job(broken)
        node = broken.placement.podsets[0].nodes[0][0]
        await expect(walk.panel("Placement")).to_contain_text(node)
        first = walk.panel("Pods").locator("tbody tr").first
        await expect(first).to_contain_text(failing)
        await expect(first).to_contain_text("CrashLoopBackOff")
    async with dashboard.task("Read the log of a failing pod") as walk:
        await walk.open_job(broken)
        await walk.click(walk.page.get_by_role("link", name=f"Read the log of {failing}"))
        await expect(walk.page.locator("#log")).to_contain_text("CUDA error: out of memory")


async def _give_commands(dashboard: Dashboard) -> None:
    sample, page = dashboard.sample, dashboard.page
    running_job = dashboard.entry(State.RUNNING, Code.PODS_READY)
    cost = Cost(running_job.priority, 7200, Fraction(running_job.gpus))
    sample.diagnoser.previews[running_job.uid, Action.HOLD] = Preview(cost, notice=30.0)
    async with dashboard.task("Stop one job, and see before how much work is lost") as walk:
        await walk.open_job(running_job)
        await walk.click(page.locator("#actions > summary"))
        await walk.click(page.locator('#actions [data-action="hold"]'))
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("About 2.0 GPU-hours of work would be lost.")
        await walk.click(dialog.get_by_role("button", name="Hold"))
        await expect(page.locator("main")).to_contain_text("requested")
    async with dashboard.task("Hold five jobs") as walk:
        await walk.click(page.get_by_role("link", name="All pending gangs"))
        for number in range(5):
            await walk.click(page.locator('input[name="workload"]').nth(number))
        await walk.click(page.get_by_role("button", name="Continue"))
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("5 of 5 workloads can get this command.")
        await walk.click(dialog.get_by_role("button", name="Hold"))
        await expect(dialog).to_contain_text("5 requested")
    commands = sample.database.commands.values()
    assert [command.action for command in commands] == [Action.HOLD] * 6


async def _account(dashboard: Dashboard) -> None:
    page = dashboard.page
    async with dashboard.task("See how much of its GPU quota a team uses") as walk:
        row = walk.panel("ClusterQueues").locator("tbody tr").filter(has_text="vision").first
        await expect(row.locator(".bar-line").first).to_have_text(re.compile(r"^\d+ of \d+"))
    async with dashboard.task("Get the GPU-hours of one user in the last month as a file") as walk:
        for link in ("Usage", "Last month", "By user"):
            await walk.click(page.get_by_role("link", name=link, exact=True).first)
        async with page.expect_download() as download:
            await walk.click(page.get_by_role("link", name="Download CSV"))
        text = (await (await download.value).path()).read_text()
        assert re.search(r"^(.*,)?ann,.*[1-9]", text, re.MULTILINE), text
    async with dashboard.task("See who changed the quota of a queue") as walk:
        await walk.click(walk.panel("ClusterQueues").get_by_role("link", name="vision"))
        await walk.click(page.locator("main").get_by_role("link", name="Configuration"))
        change = page.locator("li").filter(has_text=LATEST_CHANGE).first
        await expect(change).to_contain_text(re.compile("ann|ben|trainer"))


def test_the_page_of_the_tasks_has_the_clicks_of_the_table() -> None:
    lines = PAGES["dashboard-tasks.md"].read_text().splitlines()
    cells = (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))
    rows = [row for row in cells if row[0].isdecimal() and len(row) == 6]
    assert [row[0] for row in rows] == [str(number) for number in range(1, 11)]
    shown = {task: own for _, task, own, *_ in rows}
    assert shown == {task: f"{way} ({clicks})" for task, (way, clicks) in TASKS.items()}
    peers = [cell for _, _, _, *others in rows for cell in others]
    assert len(peers) == 3 * len(rows)
    assert [cell for cell in peers if not PEER_CELL.fullmatch(cell)] == []
