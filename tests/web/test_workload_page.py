"""The page of a job: its reason once, its run and its nodes also after its end, its actions in a menu, dependencies, links, and its size."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.api.schemas import RunTimeView
from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.links import LinkTemplate
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.web.run import progress_of
from tests.api.conftest import talking_to
from tests.web.conftest import FixedRights, app_over
from tests.web.lives import DELETED, DONE, FAILED, REQUEUED
from tests.web.sample import FLAVORS, Sample

RUNNING = "run-00001"
WAITING = "wait-00000"


async def shown(pages: httpx2.AsyncClient, uid: str) -> str:
    answer = await pages.get(f"/ui/workloads/{uid}")
    assert answer.status_code == 200
    return answer.text


def section(page: str, name: str) -> str:
    """The text of a part of the page, without markup."""
    part = page[page.index(f'aria-labelledby="{name}"') :].partition("</section>")[0]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", part)))


def figures(page: str) -> str:
    part = page[page.index('<dl class="stats">') :].partition("</dl>")[0]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", part)))


async def test_the_reason_is_stated_once_and_what_helps_follows(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    for uid in (RUNNING, WAITING, FAILED, REQUEUED):
        message = sample.database.entries[uid].reason.message
        page = unescape(await shown(pages, uid))
        assert page.count(message) == 1, uid
    assert "What helps:" in section(await shown(pages, WAITING), "why")
    assert "/why" in await shown(pages, WAITING)
    assert "Check the logs of its pods." in section(await shown(pages, FAILED), "why")


async def test_a_running_job_has_progress_remaining_time_hours_cost_and_utilization(
    pages: httpx2.AsyncClient,
) -> None:
    page = await shown(pages, RUNNING)
    text = figures(page)
    for part in ("77% of the expected run time", "Remaining time 2 h 8 min", "with a probability of 80% at most 4 h 17 min",
                 "learned from 24 gangs", "last checkpoint 11 min ago", "GPU-hours 512.0", "EUR"):  # fmt: skip
        assert part in text, text
    use = section(page, "use")
    assert "Each step is the mean of 8 min" in use
    assert re.search(r"Mean \d+%, between \d+% and \d+%; 9\d% of its GPU time is measured", use)
    assert "now 54%" in use


@pytest.mark.parametrize(
    ("uid", "sign", "end"),
    [(DONE, "✓", "Succeeded"), (FAILED, "✗", "Failed"), (DELETED, "⊘", "Deleted")],
)  # fmt: skip
async def test_a_job_that_has_ended_keeps_its_nodes_run_time_hours_cost_and_utilization(
    pages: httpx2.AsyncClient, uid: str, sign: str, end: str
) -> None:
    page = await shown(pages, uid)
    head = page[page.index('class="head-line"') :][:400]
    assert f'<i aria-hidden="true">{sign}</i>{end}' in head
    text = figures(page)
    for part in ("Run time 5 h 24 min", "Attempt 2 1 eviction", "GPU-hours 176.0", "510.40 EUR"):
        assert part in text, text
    assert "Gray: it held no GPUs." in section(page, "use")
    assert re.search(r"Last placement .*4 pods on h100.* gpu-\d\d", section(page, "place"))
    attempts = section(page, "attempts")
    assert re.search(rf" 2 .* 3 h 6 min .*gpu-.* {end} 1 .* 2 h 24 min .*gpu-.* Preempted", attempts)  # fmt: skip


async def test_a_job_that_waits_again_has_the_nodes_of_its_earlier_attempt(
    pages: httpx2.AsyncClient,
) -> None:
    page = await shown(pages, REQUEUED)
    assert re.search(r" 1 .*gpu-.* Preempted", section(page, "attempts"))
    assert 'aria-labelledby="place"' not in page
    assert "Waiting time" in figures(page)
    assert "Remaining time" not in figures(page)


async def test_a_job_that_never_started_has_no_run(pages: httpx2.AsyncClient) -> None:
    page = await shown(pages, "wait-00003")
    for part in ('aria-labelledby="use"', 'aria-labelledby="attempts"', "Run time</dt>"):
        assert part not in page


def test_remaining_time_is_a_range_and_never_negative() -> None:
    running = Entry("a", "Job", "n", "a", State.RUNNING, started_at=1000.0, past_seconds=100.0)
    learned = RunTimeView(source=RunTimeSource.LEARNED, seconds=2000.0, quantile=0.8, median=1000.0, gangs=3, error=None)  # fmt: skip
    at = {now: progress_of(running, learned, now) for now in (1400.0, 2400.0, 9000.0)}
    assert (at[1400.0].elapsed, at[1400.0].share) == (500.0, 0.5)
    assert (at[1400.0].least, at[1400.0].most) == (500.0, 1500.0)
    assert (at[2400.0].least, at[2400.0].most, at[2400.0].share) == (0.0, 500.0, 1.0)
    assert at[9000.0].overdue
    assert progress_of(running, None, 1400.0).most is None
    gone = replace(running, state=State.FINISHED)
    assert progress_of(gone, learned, 9000.0).elapsed == 100.0
    zero = learned.model_copy(update={"seconds": 0.0, "median": 0.0})
    assert progress_of(running, zero, 1400.0).share is None


async def test_a_pod_has_one_command_and_the_reason_agrees_with_the_pods(
    pages: httpx2.AsyncClient,
) -> None:
    page = await shown(pages, RUNNING)
    assert page.count("data-copy=") == 8
    assert "1 not ready" in section(page, "pods-title")
    assert "1 of 8 pods is not ready: 1 CrashLoopBackOff" in section(page, "why")


async def test_dependencies_are_a_graph_with_links_and_a_list(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    page = await shown(pages, RUNNING)
    part = page[page.index('aria-labelledby="dependencies"') :].partition("</section>")[0]
    assert part.count("<rect") == 8 - 1
    assert f'<a href="/ui/workloads/{DONE}" aria-label="Job/prepare-data: Succeeded">' in part
    text = section(page, "dependencies")
    for line in ("Job/download (before it, 2 steps): ✓ Succeeded", "Job/lost-job (before it): ? not in the cluster",
                 "Job/evaluate-0 (after it): ‖ Held; waits until PyTorchJob/"):  # fmt: skip
        assert line in text, text
    entry = sample.database.entries[RUNNING]
    rights = FixedRights(Right("get", "workloads", entry.namespace, entry.name))
    async with talking_to(app_over(sample, Guard(rights))) as stranger:
        hidden = section(await shown(stranger, RUNNING), "dependencies")
    assert "Job/prepare-data" in hidden, "its own annotation names it"
    for name in ("download", "evaluate", "Held", "Succeeded"):
        assert name not in hidden
    assert hidden.count("a job that you may not see") >= 4


async def test_links_are_encoded_and_send_no_address_of_the_dashboard(sample: Sample) -> None:
    templates = [
        LinkTemplate.parse("Grafana", "https://g.example/d?u={user}&n={name}&from={from_ms}&to={to_ms}"),
        LinkTemplate.parse("Node board", "https://g.example/n/{node}"),
        LinkTemplate.parse("Loki", "https://l.example/?pod={pod}&ns={namespace}"),
    ]  # fmt: skip
    entry = replace(sample.database.entries[RUNNING], user='a"><script>&x=/')
    sample.database.entries[RUNNING] = entry
    async with talking_to(app_over(sample, links=templates)) as pages:
        page = await shown(pages, RUNNING)
        part = (await pages.get(f"/ui/workloads/{RUNNING}/pods")).text
    user = "a%22%3E%3Cscript%3E%26x%3D%2F"
    start = int((entry.started_at or 0.0) * 1000)
    assert f"https://g.example/d?u={user}&amp;n={entry.name}&amp;from={start}&amp;to=" in page
    assert page.count("https://g.example/n/gpu-00-00-0") == 8
    assert page.count(f"https://l.example/?pod={entry.name}-worker-") == 8
    assert part.count("https://l.example/") == 8
    external = re.findall(r'<a href="https://[^>]*>', page)
    assert len(external) == 17
    assert all('target="_blank" rel="noopener noreferrer"' in link for link in external)


async def test_a_job_of_4096_pods_has_a_small_page(
    sample: Sample, pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 100_000
    nodes = tuple((f"node-{number:04}", 9) for number in range(500))
    placement = Placement((PodSetPlacement("worker", nodes, FLAVORS),))
    entry = replace(
        sample.database.entries[RUNNING],
        placement=placement,
        pods=4096,
        reason=Reason(Code.WAIT_FOR_RECOVERY, long, {"also": [{"message": long}] * 50}),
        gates=tuple(f"example.com/gate-{n}" for n in range(500)),
    )
    sample.database.entries[RUNNING] = entry
    model = sample.database.history[0]
    last = sample.database.history[-1].id
    for number in range(1, 1001):
        evicted = State.EVICTING if number % 2 else State.STARTING
        line = replace(
            model, id=last + number, uid=RUNNING, attempt=number // 2, from_state=State.PENDING,
            to_state=evicted, reason=Reason(Code.PREEMPTED, long), placement=placement,
        )  # fmt: skip
        sample.database.history.append(line)

    async def pods(_: Entry) -> tuple[PodRecord, ...]:
        return tuple(
            PodRecord("team", f"pod-{n}", f"pod-{n}", version=1, attempt=1, podset="worker", rank=n,
                      node=f"node-{n % 500:04}", phase=PodPhase.RUNNING, status_reason="OOMKilled")
            for n in range(4096)
        )  # fmt: skip

    monkeypatch.setattr(sample.cluster_reader, "pods", pods)
    page = await shown(pages, RUNNING)
    assert len(page.encode()) < 125_000, "compressed and with scripts and styles, less than 200 kB"
    assert "99 200 more letters" in page.replace("\u202f", " ")
    assert "400 more nodes" in page
    assert re.search(r"4.?096 pods", page)
    assert "the last 40 steps" in page
