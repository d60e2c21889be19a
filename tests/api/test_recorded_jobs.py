"""The recorded jobs of a server as a trace: over REST from either store, on the command line, and in a simulation."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.routes import recorded_jobs
from queuectl.cli import times
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.main import run
from queuectl.cli.spent_budgets import ServerLedger
from queuectl.client import ClientOptions, requests
from queuectl.domain.accounting import (
    HOUR,
    AccountingTerms,
    FlavorGpus,
    LostWork,
    Mark,
    Subject,
    UsagePhase,
)
from queuectl.domain.budgets import GPU_HOUR, month_of
from queuectl.domain.events import Admit, Ended, Event, PodsReady
from queuectl.domain.folding import Fold
from queuectl.domain.identity import Right
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry
from queuectl.domain.past_jobs import RecordedWorkload, UsedHour, recorded_job
from queuectl.domain.usage_reports import Period
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.words import format_time
from queuectl.objects.configuration.queue_config import build
from tests.api.conftest import AnyStore, commit
from tests.api.serving import serving
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people, signed_app
from tests.api.support import PLACED, QUOTA, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.samples import all_along
from tests.traces.clusters import virtual_clusters

PATH = "/api/v1/reports/jobs"
AT = float(int(time.time() // HOUR) * HOUR - 2 * HOUR)
NOW = AT + 1.5 * HOUR
RAN: tuple[Event, ...] = (Admit(PLACED), PodsReady(), Ended(JobOutcome.SUCCEEDED))
LIVES: dict[str, tuple[float, tuple[Event, ...]]] = {
    "early": (-5000, RAN),
    "ran": (100, RAN),
    "runs": (100, (Admit(PLACED), PodsReady())),
    "waits": (200, (QUOTA,)),
}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recorded_jobs, times):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW))


def lives() -> Iterator[Any]:
    for name, (at, events) in LIVES.items():
        yield live_through(job(name, at=AT + at), *events, priority=7)


def ledger_hour(begin: float = AT) -> Fold:
    """The gang that runs holds its 32 GPUs from 110 s to 3,600 s, a quarter used, and an eviction has lost 640 GPU-seconds."""
    who = Subject("uid-job-runs", "Job", "team-a", "runs", "default", "gpus", "", "ann", ())
    held = FlavorGpus("h100", "", 32)

    def mark(at: float, phase: UsagePhase, loss: LostWork | None = None) -> Mark:
        return Mark(who.uid, at, at, phase, 1, held.gpus, (held,), who, loss)

    fold = Fold(begin, begin + HOUR, AccountingTerms({"gpus": ""}, {}))
    use = GangUse(who.uid, 1, UseState.ACTIVE, begin, begin + HOUR, 0.25, 1.0, "")
    marks = [
        mark(begin + 110, UsagePhase.HOLDS),
        mark(begin + 200, UsagePhase.HOLDS, LostWork("Preempted", 640.0)),
    ]
    fold.workload(None, marks, all_along(use, begin))
    return fold


async def recorded(store: AnyStore) -> None:
    for changes in lives():
        await commit(store, changes)
    await accounted(store)


async def accounted(store: AnyStore | MemoryStore) -> None:
    """The usage ledger has :func:`ledger_hour`."""
    epoch = await store.take_over("test", 0)
    none = Fold(AT, AT, AccountingTerms({}, {}))
    await store.usage.keep(none, over=None, until=AT, marks=(), epoch=epoch, free={})
    await store.usage.keep(ledger_hour(), over=AT, until=AT + HOUR, marks=(), epoch=epoch, free={})


async def test_a_job_has_its_submission_its_work_and_its_utilization(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await recorded(store)
    body = (await api.get(PATH, params={"since": "1h30m"})).json()
    assert (body["since"], body["until"], body["nextCursor"]) == (AT, NOW, None)
    ran, runs = body["items"]
    assert (ran["uid"], ran["namespace"], ran["queue"]) == ("uid-job-ran", "team-a", "default")
    assert (ran["pods"], ran["gpusPerPod"], ran["priority"]) == (4, 8, 7)
    assert (ran["submitSeconds"], ran["durationSeconds"], ran["finished"]) == (100, 20, True)
    assert ran["utilization"] == []
    # Since 110 s, less the lost work: 640 GPU-seconds are 20 s of 32 GPUs.
    assert (runs["durationSeconds"], runs["finished"]) == (1.5 * HOUR - 110 - 20, False)
    assert runs["utilization"] == [{"afterSeconds": 0, "utilization": 0.25}]


async def test_the_hours_before_a_period_are_one(store: AnyStore) -> None:
    """A gang that has run for a year has thousands of them, and a page has hundreds of gangs."""
    await recorded(store)
    epoch = await store.take_over("test", 0)
    for begin in (AT + HOUR, AT + 2 * HOUR, AT + 3 * HOUR):
        fold, until = ledger_hour(begin), begin + HOUR
        await store.usage.keep(fold, over=begin, until=until, marks=(), epoch=epoch, free={})
    period = Period(int(AT + 2 * HOUR), int(AT + 3 * HOUR))
    (runs,) = await store.usage.recorded(period, "uid-job-ran", 10)
    held = 32.0 * (HOUR - 110)
    assert [one.hour for one in runs.hours] == [AT + HOUR, AT + 2 * HOUR]
    assert [one.allocated for one in runs.hours] == pytest.approx([2 * held, held])
    assert (runs.lost, runs.complete) == (640.0, True)


async def test_jobs_that_ended_before_the_period_or_never_started_are_left_out(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await recorded(store)
    body = (await api.get(PATH, params={"since": "1h30m"})).json()
    assert {item["name"] for item in body["items"]} == {"ran", "runs"}
    longer = (await api.get(PATH, params={"since": "3h"})).json()
    assert {item["name"] for item in longer["items"]} == {"early", "ran", "runs"}


async def test_a_page_ends_at_its_limit(api: httpx2.AsyncClient, store: AnyStore) -> None:
    await recorded(store)
    first = (await api.get(PATH, params={"since": "3h", "limit": "2"})).json()
    rest = {"since": "3h", "limit": "2", "cursor": first["nextCursor"]}
    second = (await api.get(PATH, params=rest)).json()
    names = [item["name"] for page in (first, second) for item in page["items"]]
    assert (names, second["nextCursor"]) == (["early", "ran", "runs"], None)


async def test_only_callers_with_both_rights_in_all_namespaces_are_answered() -> None:
    both = (Right("get", "reports"), Right("list", "workloads"))
    in_one = (Right("get", "reports", "team-a"), Right("list", "workloads", "team-a"))
    for rights, status in ((both, 200), (both[:1], 403), (both[1:], 403), (in_one, 403)):
        access = people()
        access.know("tenant", "tenant", *rights)
        async with asking(signed_app(MemoryStore(), access), "tenant") as client:
            assert (await client.get(PATH)).status_code == status
    for token, status in ((ADMIN, 200), (NO_RIGHTS, 403), (None, 401)):
        async with asking(signed_app(MemoryStore(), people()), token) as client:
            assert (await client.get(PATH)).status_code == status


def entry(queued: float, begin: float, end: float | None) -> Entry:
    """A gang of 4 pods with 8 GPUs each that ran once."""
    changes = live_through(job("x", at=queued), Admit(PLACED), PodsReady())
    last = replace(changes[-1].after, started_at=begin)
    if end is None:
        return last
    return replace(last, finished_at=end, past_seconds=end - begin, started_at=None)


@pytest.mark.parametrize(
    ("found", "submit", "duration"),
    [
        (RecordedWorkload(entry(4000, 5000, 6000), 0), 400, 1000),
        (RecordedWorkload(entry(4000, 5000, None), 0), 400, 2200),
        (RecordedWorkload(entry(4000, 5000, 9000), 0), 400, 2200),
        # It waited and ran again after the end, of which the ledger of the period has nothing.
        (
            RecordedWorkload(entry(4000, 5000, 19000), 64, (UsedHour(3600, 320, 0, 0),), True),
            400,
            8,
        ),
        (
            RecordedWorkload(
                replace(entry(4000, 5000, 9000), gpus=0), 0, (UsedHour(3600, 0, 0, 0),), True
            ),
            400,
            2200,
        ),
        (RecordedWorkload(entry(4000, 7201, None), 0, (UsedHour(3600, 320, 0, 0),), True), 400, 10),
        (RecordedWorkload(entry(4000, 5000, 6000), 3200), 400, 900),
        # It ran from 1,800 s on, of which the ledger has 1,800 s before the begin.
        (RecordedWorkload(entry(0, 1800, 6000), 0, (UsedHour(0, 1800 * 32, 0, 0),)), 0, 2400),
        # Without hours, it did not work longer than it was there.
        (RecordedWorkload(entry(0, 1800, 6000), 0), 0, 2400),
    ],
)
def test_the_part_of_a_job_in_a_period(
    found: RecordedWorkload, submit: float, duration: float
) -> None:
    """From 3,600 s to 7,200 s."""
    job = recorded_job(found, 3600, 7200)
    assert job is not None
    assert (job.submit, job.duration) == (submit, duration)


@pytest.mark.parametrize(
    "found",
    [
        RecordedWorkload(entry(4000, 7300, None), 0),
        RecordedWorkload(entry(4000, 7300, 9000), 0),
        RecordedWorkload(entry(4000, 7300, 9000), 0, (), True),
        # It ran until 3,000 s, and waited until after the end.
        RecordedWorkload(entry(0, 1200, 3000), 0, (UsedHour(0, 1800 * 32, 0, 0),), True),
    ],
)
def test_a_job_that_did_not_run_in_a_period_is_not_part_of_it(found: RecordedWorkload) -> None:
    """From 3,600 s to 7,200 s."""
    assert recorded_job(found, 3600, 7200) is None


def test_utilization_is_that_of_each_hour_over_the_work() -> None:
    hours = (
        UsedHour(3600, 1800 * 32, 900 * 32, 0),
        UsedHour(7200, 3600 * 32, 0, 3600 * 32),  # not measured
        UsedHour(10800, 3600 * 32, 0, 0),
    )
    found = recorded_job(RecordedWorkload(entry(3600, 5400, None), 0, hours), 3600, 14400)
    assert found is not None
    assert found.utilization == ((0, 0.5), (5400, 0))


@pytest.fixture
def store_of_lives() -> MemoryStore:
    store = MemoryStore()
    for changes in lives():
        for change in changes:
            store._write(change, 1)
    return store


@pytest.fixture
def server(store_of_lives: MemoryStore) -> Iterator[str]:
    with serving(store_of_lives) as address:
        yield address


@pytest.fixture
def printed(
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def type_in(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["queuectl", *words, "--server", server])
        with pytest.raises(SystemExit) as ended:
            run()
        captured = capsys.readouterr()
        assert not ended.value.code, captured.err
        return captured.out

    return type_in


def test_the_trace_of_a_server_is_a_csv_for_simulations(printed: Callable[..., str]) -> None:
    lines = list(csv.DictReader(io.StringIO(printed("trace", "--since", "90m"))))
    assert [line["name"] for line in lines] == ["ran", "runs"]
    assert lines[0]["queue"] == "team-a/default"
    assert (lines[0]["submit_s"], lines[0]["duration_s"], lines[0]["finished"]) == (
        "100",
        "20",
        "true",
    )


def test_pages_that_are_read_in_two_hours_have_the_same_begin(
    printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGEST_PAGE", 1)
    clock = count(NOW, HOUR)
    monkeypatch.setattr(recorded_jobs, "time", SimpleNamespace(time=lambda: next(clock)))
    lines = list(csv.DictReader(io.StringIO(printed("trace", "--since", "90m"))))
    assert [(line["name"], line["submit_s"]) for line in lines] == [("ran", "100"), ("runs", "100")]
    assert next(clock) > NOW + HOUR


@pytest.mark.parametrize(
    ("since", "until", "names"),
    [
        ("30d", "1d", []),
        ("3h", "60m", ["early", "ran", "runs"]),
        (format_time(AT), format_time(NOW), ["ran", "runs"]),
    ],
)
def test_a_trace_has_the_jobs_of_its_period(
    printed: Callable[..., str], since: str, until: str, names: list[str]
) -> None:
    lines = csv.DictReader(io.StringIO(printed("trace", "--since", since, "--until", until)))
    assert [line["name"] for line in lines] == names


def test_an_anonymous_trace_has_no_names_of_jobs_and_users(printed: Callable[..., str]) -> None:
    text = printed("trace", "--since", "90m", "--anonymous", "--utilization", "use.csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["job_id"], line["name"]) for line in lines] == [
        ("job-1", "job-1"),
        ("job-2", "job-2"),
    ]
    assert Path("use.csv").read_text() == "job_id,after_s,gpu_util_pct\n"


def write_cluster(*more: dict[str, Any]) -> None:
    """Four nodes for LocalQueue team-a/default, and other objects."""
    items = [*virtual_clusters({"a": 4}), *more]
    for item in items:
        if item["kind"] == "LocalQueue":
            item["metadata"] = {"name": "default", "namespace": "team-a"}
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    Path("cluster.json").write_text(json.dumps(listed))


def test_the_history_is_simulated_as_the_trace_that_it_is(printed: Callable[..., str]) -> None:
    """Of two jobs of 4 nodes, the second one waits until the first one has ended."""
    write_cluster()
    Path("trace.csv").write_text(printed("trace", "--since", "90m"))
    by_trace, by_history = (
        json.loads(printed("simulate", "-f", "cluster.json", *source, "-o", "json"))
        for source in (("--trace", "trace.csv"), ("--history", "90m"))
    )
    assert by_trace == by_history
    assert by_history["meanWaitSeconds"] == 10


ZONE = next(z for z in ("UTC", "Asia/Tokyo") if month_of(AT, z) == month_of(AT + 2 * HOUR, z))


def budget(gpu_hours: float, **spec: Any) -> dict[str, Any]:
    """A Budget whose month has all of these hours."""
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "b"},
        "spec": {"gpuHoursPerMonth": gpu_hours, "timeZone": ZONE, **spec},
    }


@pytest.mark.parametrize(
    "spender",
    [{"clusterQueue": "gpus"}, {"localQueue": "team-a/default"}, {"namespace": "team-a"}, {"user": "ann"}],
    ids=lambda spender: next(iter(spender)),
)  # fmt: skip
def test_budgets_have_spent_what_the_ledger_of_the_server_has(
    spender: dict[str, str], server: str, store_of_lives: MemoryStore
) -> None:
    asyncio.run(accounted(store_of_lives))
    budgets = build([budget(100, **spender)], 0).budgets.values()
    other = build([budget(100, namespace="team-b")], 0).budgets.values()
    month = month_of(AT, ZONE).begins
    ledger = ServerLedger(server)
    spent = 32 * (HOUR - 110) * GPU_HOUR // HOUR
    assert ledger.spent(budgets, AT + HOUR).units == {
        ("b", month): pytest.approx(spent, abs=GPU_HOUR / 1000)
    }
    assert ledger.spent(budgets, AT).units == {("b", month): 0}
    assert ledger.spent(other, AT + HOUR).units == {("b", month): 0}


@pytest.mark.parametrize(("gpu_hours", "start", "held"), [(33, HOUR, False), (31, HOUR, True), (31, 0, False)])  # fmt: skip
def test_a_simulated_history_begins_with_what_budgets_have_spent(
    gpu_hours: float,
    start: float,
    held: bool,
    printed: Callable[..., str],
    store_of_lives: MemoryStore,
) -> None:
    """The first of two jobs takes some GPU-seconds; a spent Budget holds both until the next month."""
    asyncio.run(accounted(store_of_lives))
    write_cluster(budget(gpu_hours, namespace="team-a"))
    begin = format_time(AT + start)
    found = printed(
        "simulate", "-f", "cluster.json", "--history", "90m", "--start", begin, "-o", "json"
    )
    until = month_of(AT, ZONE).ends - (AT + start)
    assert json.loads(found)["meanWaitSeconds"] == (until - 90 if held else 10)


@pytest.mark.parametrize(
    ("right", "fails"),
    [
        (Right("get", "reports", "team-a"), True),
        (Right("get", "reports"), True),
        (Right("list", "nodes"), False),
    ],
)
def test_a_caller_needs_all_reports_and_the_nodes_to_know_what_budgets_have_spent(
    right: Right, fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("some")
    own = ClientOptions(token_file=tmp_path / "token")
    monkeypatch.setattr("queuectl.cli.connection.connection_options", lambda: own)
    access = people()
    access.know("some", "tenant", right, *(() if fails else [Right("get", "reports")]))
    layer = AuthenticationLayer(access, secure=True, open_paths=OpenPaths())
    budgets = build([budget(100, user="ann")], 0).budgets.values()
    with serving(MemoryStore(), authenticated=layer) as address:
        ledger = ServerLedger(address)
        if not fails:
            assert set(ledger.spent(budgets, AT + HOUR).units.values()) == {0}
            return
        with pytest.raises(CommandFailed, match="all namespaces and to list nodes") as failed:
            ledger.spent(budgets, AT + HOUR)
        assert failed.value.code is Exit.NOT_ALLOWED
