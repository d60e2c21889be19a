"""Quota use after changes of queues: recounting only the affected gangs gives the same result as recounting all."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.leader.leader_state import LeaderState
from queuectl.domain.ledger import Loaded, State
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import PodSet, PodShape
from queuectl.objects.configuration.catalog import Catalog, concerned
from queuectl.state.holdings import Holdings
from queuectl.state.mirror import Mirror
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, LIVES, LOCAL_QUEUE, job, live_through

Body = dict[str, Any]
ENTRIES = [live_through(job(life), *events)[-1].after for life, events in LIVES.items()]
OTHER: Body = {**deepcopy(CLUSTER_QUEUE), "metadata": {"name": "team-b"}}
MOVED: Body = {**LOCAL_QUEUE, "spec": {"clusterQueue": "team-b"}}
STOPPED = deepcopy(CLUSTER_QUEUE)
STOPPED["spec"]["stopPolicy"] = "Hold"
JOINED = deepcopy(CLUSTER_QUEUE)
JOINED["spec"]["cohortName"] = "other"
INVALID: Body = {
    **deepcopy(CLUSTER_QUEUE),
    "metadata": {"name": "c"},
    "spec": {"stopPolicy": "Never"},
}
RULES: Body = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "resources": {"excludeResourcePrefixes": ["nvidia.com"]},
}
QUEUE_KEY, LOCAL_KEY = DocumentKey.of(CLUSTER_QUEUE), DocumentKey.of(LOCAL_QUEUE)


def sums(holdings: Holdings) -> list[dict[Any, int]]:
    return [dict(one) for one in (holdings.held, holdings.kept, holdings.pending)]


@pytest.mark.parametrize(
    ("written", "deleted", "of_some"),
    [
        pytest.param([OTHER], [], 0, id="a queue without gangs"),
        pytest.param([OTHER, MOVED], [], 1, id="a LocalQueue points to another queue"),
        pytest.param([STOPPED], [], 1, id="their queue"),
        pytest.param([JOINED], [], 0, id="the Cohort of their queue"),
        pytest.param([], [QUEUE_KEY], 1, id="their queue is deleted"),
        pytest.param([], [LOCAL_KEY], 1, id="their LocalQueue is deleted"),
        pytest.param([DOCUMENTS["/api/v1/cohorts/all"]], [], 0, id="a Cohort"),
        pytest.param([RULES], [], None, id="rules affect every gang"),
        pytest.param([OTHER, RULES], [], None, id="alongside a queue as well"),
        pytest.param([], [DocumentKey("ResourceFlavor", "", "h100")], None, id="a flavor as well"),
    ],
)
def test_a_partial_recount_equals_a_full_recount(
    written: list[Body], deleted: list[DocumentKey], of_some: int | None
) -> None:
    mirror = Mirror({})
    mirror.jobs = {entry.uid: job(entry.name) for entry in ENTRIES}
    catalog, partly, wholly = Catalog(), Holdings(mirror), Holdings(mirror)
    catalog.replace(DOCUMENTS.values())
    partly.configure(catalog.config(1), ENTRIES)
    assert any(partly.held.values())
    assert any(partly.pending.values())
    changes = ConfigChanges(2, tuple(written), frozenset(deleted))
    before = catalog.config(1)
    catalog.follow(changes)
    config = catalog.config(2)
    queues = concerned(changes, before, config)
    assert (None if queues is None else len(queues)) == of_some
    if queues is None:
        return
    partly.reconfigure(config, [e for e in ENTRIES if (e.namespace, e.queue) in queues])
    wholly.configure(config, ENTRIES)
    assert sums(partly) == sums(wholly)
    assert partly.config is config


def test_after_a_configuration_that_cannot_be_read_all_gangs_are_counted_again() -> None:
    """The next change counts together with those that came with the invalid document."""
    mirror = Mirror({})
    mirror.jobs = {entry.uid: job(entry.name) for entry in ENTRIES}
    state = LeaderState(mirror, SolverLimits(), 10.0, lambda: 100.0, 60.0)
    state.load(Loaded(tuple(ENTRIES), tuple(DOCUMENTS.values()), 1))
    state.configure(ConfigChanges(2, (OTHER, MOVED, INVALID)))
    state.configure(ConfigChanges(3, (), frozenset({DocumentKey.of(INVALID)})))
    wholly = Holdings(mirror)
    wholly.configure(state.config, ENTRIES)
    assert state.config.local_queues["team-a", "default"].cluster_queue == "team-b"
    assert sums(state.holdings) == sums(wholly)


@pytest.mark.parametrize("life", LIVES)
def test_a_gang_counts_with_the_request_that_its_job_has_now(life: str) -> None:
    mirror, catalog = Mirror({}), Catalog()
    before = job(life)
    mirror.jobs[before.uid] = before
    entry = live_through(before, *LIVES[life])[-1].after
    catalog.replace(DOCUMENTS.values())
    kept, fresh = Holdings(mirror), Holdings(mirror)
    kept.configure(catalog.config(1), [entry])
    requests = Resources({GPU: 8, "cpu": 64000})
    mirror.jobs[before.uid] = replace(before, podsets=(PodSet("worker", 4, PodShape(requests)),))
    kept.note_requests([before.uid, "of no gang"])
    fresh.configure(catalog.config(1), [entry])
    assert sums(kept) == sums(fresh)


def test_a_resource_without_quota_has_a_row_while_gangs_that_request_it_wait() -> None:
    """Users request any number of resources, and each row is a series of metrics."""
    mirror, catalog = Mirror({}), Catalog()
    holdings = Holdings(mirror)
    catalog.replace(DOCUMENTS.values())
    holdings.configure(catalog.config(1), ())
    for number in range(100):
        plain = job(f"job-{number}")
        requests = Resources({GPU: 8, f"example.com/device-{number}": 1})
        asking = replace(plain, podsets=(PodSet("worker", 4, PodShape(requests)),))
        mirror.jobs[asking.uid] = asking
        (submitted,) = live_through(asking)
        holdings.note([submitted])
        assert holdings.pending["team-a", f"example.com/device-{number}"] == 4
        ended = replace(submitted.after, state=State.FINISHED)
        holdings.note([replace(submitted, before=submitted.after, after=ended)])
    assert holdings.pending == {("team-a", GPU): 0}
    assert list(holdings.pending) == [("team-a", GPU)]
