"""The pages of queues: counts by reason, cohorts with what they lend and borrow, LocalQueues, and who may stop what."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.domain.fleet import Fleet
from queuectl.domain.identity import Right
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import IN_QUEUE_ORDER, DocumentKey, QueueCounts
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from queuectl.objects.configuration.queue_config import build
from queuectl.planner.cache import PlannerCache
from queuectl.reports.quotas import Quotas, cohort_trees, held_by, quotas_of
from queuectl.web.counts import counts_of, pending_reasons
from queuectl.web.pages import local_queues
from queuectl.web.pages.overview import sums_of
from queuectl.web.pages.queues import rows
from queuectl.web.site import AccessScope
from queuectl.web.words import percent
from tests.api.conftest import talking_to
from tests.web.conftest import FixedRights, app_over
from tests.web.sample import Sample
from tests.web.serve_sample import dashboard
from tests.web.test_quotas import document

FLAVORS = {GPU: "h100"}


def cluster_queue(name: str, gpus: int, cohort: str | None = None, **more: Any) -> dict[str, Any]:
    quota = {"name": GPU, "nominalQuota": gpus}
    group = {"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]}
    named = {"cohortName": cohort} if cohort is not None else {}
    return document("ClusterQueue", name, {"resourceGroups": [group], **named, **more})


def local_queue(name: str) -> dict[str, Any]:
    made = document("LocalQueue", "default", {"clusterQueue": name})
    made["metadata"]["namespace"] = f"team-{name}"
    return made


def holding(name: str, gpus: int) -> Admitted:
    """A gang in the LocalQueue of this team."""
    podset = PodSet("main", 1, PodShape(Resources({GPU: gpus})))
    workload = Workload(name, "Job", f"team-{name}", name, (podset,), "default")
    return Admitted(workload, Placement((PodSetPlacement("main", (), FLAVORS),)), started_at=0.0)


@pytest.fixture
def snapshot() -> Snapshot:
    """In cohort company: vision borrows 24 of 32 of cohort research, and speech lends them; batch has no cohort."""
    documents = [
        document("Cohort", "research", {"parentName": "company"}),
        cluster_queue("vision", 8, "research", fairSharing={"weight": "2"}),
        cluster_queue("speech", 32, "research"),
        cluster_queue("platform", 64, "company"),
        cluster_queue("batch", 4),
        *map(local_queue, ("vision", "speech", "platform", "batch")),
        document("ResourceFlavor", "h100", {}),
    ]
    running = (holding("vision", 32), holding("platform", 60))
    return Snapshot(0.0, Fleet(()), build(documents, 1), admitted=running)


@pytest.fixture
def quotas(snapshot: Snapshot) -> Quotas:
    return quotas_of(snapshot.config, snapshot, PlannerCache())


def tally(code: Code, gangs: int, state: State = State.PENDING, oldest: float = 1.0) -> QueueCounts:
    return QueueCounts("team", "default", "pool", state, code, gangs, 8 * gangs, oldest)


def test_reasons_are_counted_the_most_frequent_first_and_lead_to_their_gangs() -> None:
    found = pending_reasons(
        [
            tally(Code.WAITING_FOR_QUOTA, 2),
            tally(Code.WAITING_FOR_QUOTA, 3),
            tally(Code.TOPOLOGY_PLACEMENT_FAILED, 9),
            tally(Code.WAITING_FOR_PREEMPTED, 1, State.RESERVED),
            tally(Code.PODS_READY, 50, State.RUNNING),
            tally(Code.HELD, 50, State.HELD),
        ],
        queue="pool",
    )
    assert [(one.code, one.gangs, one.gpus) for one in found] == [
        (Code.TOPOLOGY_PLACEMENT_FAILED, 9, 72),
        (Code.WAITING_FOR_QUOTA, 5, 40),
        (Code.WAITING_FOR_PREEMPTED, 1, 8),
    ]
    assert all(one.meaning for one in found)
    queries = [parse_qs(urlsplit(one.address).query) for one in found]
    assert queries[0] == {
        "queue": ["pool"], "reason": ["TopologyPlacementFailed"], "state": ["Pending"]
    }  # fmt: skip
    assert queries[2]["state"] == ["Reserved"]


def test_a_reason_of_gangs_with_and_without_a_reservation_leads_to_both() -> None:
    (one,) = pending_reasons([tally(Code.QUEUED, 1), tally(Code.QUEUED, 1, State.RESERVED)])
    assert parse_qs(urlsplit(one.address).query) == {
        "reason": ["Queued"],
        "state": ["Pending", "Reserved"],
    }


def test_gangs_are_counted_by_what_they_hold() -> None:
    counts = counts_of(
        [
            tally(Code.QUEUED, 3, oldest=5.0),
            tally(Code.WAITING_FOR_PREEMPTED, 1, State.RESERVED, oldest=4.0),
            tally(Code.PODS_READY, 2, State.RUNNING, oldest=1.0),
            tally(Code.ADMITTED, 2, State.STARTING),
            tally(Code.PREEMPTED, 1, State.EVICTING),
            tally(Code.BACKOFF, 1, State.BACKOFF),
        ]
    )
    sums = (counts.admitted, counts.pending, counts.reserved, counts.inactive)
    assert [one.gangs for one in sums] == [5, 4, 1, 1]
    assert counts.oldest == 4.0
    assert counts_of([]).oldest is None


def test_the_tree_has_each_cohort_with_its_children_and_queues(quotas: Quotas) -> None:
    (company,), (batch,) = cohort_trees(quotas, lambda name: True)
    (research,) = company.cohorts
    assert (company.name, research.name, batch.queue.name) == ("company", "research", "batch")
    assert [leaf.queue.name for leaf in company.queues] == ["platform"]
    assert [leaf.queue.name for leaf in research.queues] == ["speech", "vision"]
    assert [(bar.nominal, bar.used) for bar in research.bars] == [(40, 32)]
    assert [(bar.nominal, bar.used) for bar in company.bars] == [(104, 92)]


def test_a_queue_shows_what_it_borrows_and_what_it_lends(quotas: Quotas) -> None:
    (company,), _ = cohort_trees(quotas, lambda name: True)
    (speech, vision), (platform,) = company.cohorts[0].queues, company.queues
    assert [(bar.borrowed, bar.lent) for bar in vision.bars] == [(24, 0)]
    assert [(bar.borrowed, bar.lent) for bar in speech.bars] == [(0, 20)], "12 of all 104 are free"
    assert [(bar.borrowed, bar.lent) for bar in platform.bars] == [(0, 0)]
    assert (vision.fair.weight, speech.fair.share) == (2.0, 0.0)
    assert vision.fair.share == pytest.approx(24 / 104 / 2)


def test_a_cohort_is_shown_with_the_queues_that_the_caller_may_see(quotas: Quotas) -> None:
    (company,), alone = cohort_trees(quotas, lambda name: name == "vision")
    assert (company.queues, company.hidden, alone) == ((), 1, ())
    assert [leaf.queue.name for leaf in company.cohorts[0].queues] == ["vision"]
    assert company.cohorts[0].hidden == 1
    assert cohort_trees(quotas, lambda name: name == "platform")[0][0].cohorts == ()
    assert cohort_trees(quotas, lambda name: False) == ((), ())


def test_without_a_snapshot_the_tree_has_quota_and_no_use(snapshot: Snapshot) -> None:
    (company,), _ = cohort_trees(quotas_of(snapshot.config, None, PlannerCache()), lambda _: True)
    assert [(bar.nominal, bar.used) for bar in company.bars] == [(104, None)]
    assert company.cohorts[0].queues[0].fair.share is None


def test_a_local_queue_uses_what_its_gangs_hold(snapshot: Snapshot) -> None:
    assert held_by(snapshot, PlannerCache(), "team-vision", "default") == {("h100", GPU): 32}
    assert held_by(snapshot, PlannerCache(), "team-speech", "default") == {}


class Counted(dict[Any, Any]):
    """Counts how often all values are read."""

    reads = 0

    def values(self) -> Any:
        self.reads += 1
        return super().values()


def test_a_list_of_cluster_queues_reads_the_local_queues_once(quotas: Quotas) -> None:
    counted = Counted(quotas.stated.local_queues)
    given = replace(quotas, stated=replace(quotas.stated, local_queues=counted))
    tenant = AccessScope(
        who="tenant",
        namespaces=frozenset({"team-vision", "team-batch"}),
        queues=False,
        nodes=False,
        plan=False,
        usage=False,
        decisions=False,
        audit=False,
        config=False,
    )
    tallies = (
        tally(Code.WAITING_FOR_QUOTA, 3),
        replace(tally(Code.WAITING_FOR_QUOTA, 2), cluster_queue="vision"),
    )
    listed = rows(given, tallies, tenant)
    assert [(row.queue.name, row.counts.pending.gangs) for row in listed] == [
        ("batch", 0),
        ("vision", 2),
    ]
    assert counted.reads == 1


# -- the pages


@pytest.fixture
async def lead(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """May read the workloads of one team, and stop its LocalQueue."""
    rights = FixedRights(
        Right("list", "workloads", "team-vision"),
        Right("create", "localqueues/stop", "team-vision", "default"),
    )
    async with talking_to(app_over(sample, Guard(rights))) as client:
        yield client


async def test_a_tenant_sees_the_queues_of_their_namespaces(lead: httpx2.AsyncClient) -> None:
    listed = (await lead.get("/ui/localqueues")).text
    assert "team-vision/default" in listed
    assert "team-speech" not in listed
    tree = (await lead.get("/ui/cohorts")).text
    assert "/ui/queues/vision" in tree
    assert "/ui/queues/speech" not in tree
    assert "3 other ClusterQueues" in tree
    assert (await lead.get("/ui/localqueues/team-vision/default")).status_code == 200
    assert (await lead.get("/ui/localqueues/team-speech/default")).status_code == 404


async def test_a_long_list_of_local_queues_is_cut_with_a_note(
    pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_queues, "SHOWN", 3)
    text = (await pages.get("/ui/localqueues")).text
    assert "3 of 4 LocalQueues are shown." in text
    assert "team-vision/default" not in text
    assert "are shown" not in (await pages.get("/ui/localqueues?namespace=team-vision")).text


async def test_a_button_is_there_for_who_may_press_it(lead: httpx2.AsyncClient) -> None:
    local = (await lead.get("/ui/localqueues/team-vision/default")).text
    assert 'data-address="/api/v1/namespaces/team-vision/localqueues/default/stop"' in local
    assert "data-address" not in (await lead.get("/ui/queues/vision")).text


@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        ("None", ["Stop", "Stop and drain"]),
        ("Hold", ["Resume", "Stop and drain"]),
        ("HoldAndDrain", ["Resume"]),
    ],
)
async def test_the_buttons_are_those_that_change_the_stop_policy(
    sample: Sample, policy: str, labels: list[str]
) -> None:
    key = DocumentKey("ClusterQueue", "", "vision")
    stored = await sample.store.get_config(key)
    assert stored is not None
    spec = {**stored.document["spec"], "stopPolicy": policy}
    await sample.store.put_config({**stored.document, "spec": spec})
    async with talking_to(dashboard(sample)) as fresh:  # another one keeps the old configuration
        text = (await fresh.get("/ui/queues/vision")).text
    found = [part.partition('"')[0] for part in text.split('data-label="')[1:]]
    assert found == labels


async def test_the_links_of_the_overview_list_the_pending_gangs_that_it_counts(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    pending = [e for e in sample.database.entries.values() if e.state in IN_QUEUE_ORDER]
    assert {entry.state for entry in pending} == {State.PENDING, State.RESERVED}
    overview = (await pages.get("/ui/")).text
    (link,) = re.findall(r'href="([^"]*)">All pending gangs', overview)
    listed = (await pages.get(unescape(link))).text
    assert {e.ref for e in pending} == set(re.findall(r'aria-label="Select ([^"]*)"', listed))


async def test_the_overview_explains_free_gpus_alongside_pending_gangs(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    text = (await pages.get("/ui/")).text
    assert "GPUs are free. A pending gang can start only if" in text
    assert "/ui/workloads?reason=WaitingForQuota&amp;state=Pending" in text


async def test_the_overview_shows_the_efficiency_of_the_measured_gpus(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    cluster_map = await sample.cluster_reader.cluster_map()
    assert cluster_map is not None
    parts = sums_of(cluster_map).efficiency
    assert parts.unknown == 0
    assert f"; efficiency {percent(parts.efficiency or 0.0)}<" in (await pages.get("/ui/")).text


async def test_pending_gangs_of_a_local_queue_are_its_own_in_queue_order(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    other = sample.database.entries["wait-00001"]
    text = (await pages.get("/ui/localqueues/team-vision/default")).text
    waiting = await sample.store.waiting("vision", {"team-vision"}, queue="default")
    places = [text.index(f">{entry.ref}<") for entry in waiting]
    assert places == sorted(places)
    assert (other.ref in text) is (other.namespace == "team-vision")


async def test_the_link_of_a_reason_leads_to_the_gangs_that_it_counts(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    tallies = [one for one in await sample.store.tallies() if one.namespace == "team-vision"]
    for reason in pending_reasons(tallies, namespace="team-vision", localqueue="default"):
        listed = (await pages.get(reason.address)).text
        assert listed.count('href="/ui/workloads/wait-') == reason.gangs
        assert f'<option value="{reason.code}" selected>' in listed
