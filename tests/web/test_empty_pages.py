"""A page without anything to list names what can be done, for those who may do it and for others."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.domain.identity import Right
from tests.api.conftest import talking_to
from tests.web.conftest import FixedRights, app_over
from tests.web.sample import Sample

READER = FixedRights(
    Right("list", "workloads"),
    Right("list", "clusterqueues"),
    Right("list", "reservations"),
    Right("get", "reports"),
)


@pytest.fixture
def bare(sample: Sample) -> Sample:
    """A cluster without requests, evictions, decisions, Budgets and Reservations."""
    database = sample.database
    for records in (database.audit, database.decisions, database.history):
        records.clear()
    database.documents = {
        key: document
        for key, document in database.documents.items()
        if key.kind not in ("Budget", "Reservation")
    }
    snapshot = sample.cluster_reader.snapshot
    assert snapshot is not None
    sample.cluster_reader.snapshot = replace(snapshot, budgets=())
    return sample


@pytest.mark.parametrize(
    ("path", "for_admins", "for_others"),
    [
        ("/ui/budgets", "/ui/config/new?kind=budgets", "An administrator can create one"),
        ("/ui/reservations", "/ui/config/new?kind=reservations", "An administrator can create"),
        ("/ui/evictions", "Each preemption", "Each preemption"),
        ("/ui/decisions", "shows why pending gangs do not start", ""),
        ("/ui/audit", "No change was requested yet", ""),
        ("/ui/audit?caller=nobody", "Show all requests", ""),
    ],
)
async def test_an_empty_page_names_the_next_step(
    bare: Sample, pages: httpx2.AsyncClient, path: str, for_admins: str, for_others: str
):
    assert for_admins in (await pages.get(path)).text
    if for_others:
        async with talking_to(app_over(bare, Guard(READER))) as reader:
            answer = await reader.get(path)
        assert for_others in answer.text
        assert "/ui/config/new" not in answer.text[answer.text.index("<main") :]
