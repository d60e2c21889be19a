"""A page shows only what the caller may see, and offers only what the caller may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.domain.identity import Right
from queuectl.domain.ledger import State
from queuectl.domain.queries import in_queue_order
from queuectl.domain.reasons import Code, Reason
from tests.api.conftest import talking_to
from tests.web.conftest import FixedRights, app_over
from tests.web.sample import Sample

OTHERS = ("team-language", "team-speech", "team-platform")
PATHS = (
    "/ui/",
    "/ui/queues",
    "/ui/queues/vision",
    "/ui/workloads",
    "/ui/timeline",
    "/ui/evictions",
    "/ui/nodes",
    "/ui/nodes?q=gpu-",
    "/ui/nodes?q=team-language",
    "/ui/nodes/data",
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_tenant_reads_no_name_of_another_team(tenant: httpx2.AsyncClient, path: str):
    answer = await tenant.get(path)
    assert answer.status_code == 200
    text = answer.text.replace("with <strong>team-language</strong>", "").replace('value="team-language"', "").replace("q=team-language", "")  # fmt: skip
    assert _naming_others(text) == []


@pytest.mark.parametrize("path", ["/ui/workloads/{uid}", "/ui/queues/vision", "/ui/evictions"])
async def test_a_tenant_reads_their_own_gangs_without_the_names_of_others(
    sample: Sample, tenant: httpx2.AsyncClient, path: str
):
    entries, history = sample.database.entries, sample.database.history
    entry = next(e for e in entries.values() if e.namespace == "team-vision" and in_queue_order(e))
    reason = Reason(Code.PREEMPTED, "preempted for team-language/urgent-1; this frees 8 GPUs")
    entries[entry.uid] = replace(entry, reason=reason)
    line = next(line for line in history if line.uid == entry.uid)
    history[history.index(line)] = replace(line, to_state=State.EVICTING, reason=reason)
    text = (await tenant.get(path.format(uid=entry.uid))).text
    assert "preempted for another team" in text
    assert _naming_others(text) == []


def _naming_others(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(f"{other}/" in line for other in OTHERS)]


async def test_a_tenant_sees_their_own_gangs_on_the_map_and_others_without_a_name(
    tenant: httpx2.AsyncClient,
):
    gangs = (await tenant.get("/ui/nodes/data")).json()["gangs"]
    names = {name for name, *_ in gangs}
    assert "another team" in names
    assert any(name.startswith("team-vision/") for name in names)
    assert all(uid == "" and queue == "" for name, uid, queue, _ in gangs if name == "another team")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/ui/queues/language", 403), ("/ui/queues/vision", 200), ("/ui/workloads/aside-0", 404)],
)
async def test_another_teams_pages_are_closed(tenant: httpx2.AsyncClient, path: str, status: int):
    assert (await tenant.get(path)).status_code == status


async def test_commands_are_offered_with_their_rights(
    sample: Sample, tenant: httpx2.AsyncClient, pages: httpx2.AsyncClient
):
    entry = next(e for e in sample.database.entries.values() if e.namespace == "team-vision")
    mine = (await tenant.get(f"/ui/workloads/{entry.uid}")).text
    everything = (await pages.get(f"/ui/workloads/{entry.uid}")).text
    assert 'data-action="hold"' in mine
    assert 'data-action="priority"' not in mine
    assert 'data-action="priority"' in everything


async def test_the_reason_of_a_disabled_button_is_on_the_page(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/workloads/run-00001")).text
    button = text[text.index('data-action="release"') :].partition("</button>")[0]
    assert 'aria-disabled="true"' in button
    assert "Not available: " in button
    available = text[text.index('data-action="hold"') :].partition("</button>")[0]
    assert "aria-disabled" not in available
    assert "data-evicts" in available


CLOSED = ("/ui/decisions", "/ui/decisions/3", "/ui/usage", "/ui/budgets", "/ui/audit", "/ui/config")


@pytest.mark.parametrize("path", CLOSED)
async def test_pages_of_administrators_are_closed_to_others_and_not_offered(
    tenant: httpx2.AsyncClient, pages: httpx2.AsyncClient, path: str
):
    assert (await tenant.get(path)).status_code == 403
    way = f'href="{path.removesuffix("/3")}"'
    assert way in (await pages.get(path)).text
    for other in ("/ui/", "/ui/evictions", path):
        text = (await tenant.get(other)).text
        assert way not in text
        assert ">Admin</a>" not in text


@pytest.fixture
async def viewer(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may list decisions, and the workloads and the usage of one team."""
    rights = FixedRights(
        Right("list", "decisions"),
        Right("get", "decisions"),
        Right("list", "workloads", "team-vision"),
        Right("get", "reports", "team-vision"),
    )
    async with talking_to(app_over(sample, Guard(rights))) as client:
        yield client


@pytest.mark.parametrize("by", ["namespace", "queue", "workload"])
async def test_usage_is_that_of_the_namespaces_one_may_report_on(
    viewer: httpx2.AsyncClient, by: str
):
    text = (await viewer.get(f"/ui/usage?by={by}&span=168h")).text
    assert "team-vision" in text
    assert all(other not in text for other in OTHERS)
    assert "GPUs of the nodes" not in text
    assert 'href="/ui/usage"' in text


async def test_a_decision_shows_visible_gangs_only(
    sample: Sample, viewer: httpx2.AsyncClient, pages: httpx2.AsyncClient
):
    seen = ""
    for decided in sample.database.decisions:
        text = (await viewer.get(f"/ui/decisions/{decided.id}")).text
        seen += text[text.index('id="who"') :]
        everything = (await pages.get(f"/ui/decisions/{decided.id}")).text
        lines = sample.database.history[decided.after : decided.upto]
        assert all(line.name in everything for line in lines)
    assert "team-vision/" in seen
    assert _naming_others(seen) == []


async def test_a_start_leads_to_its_decision(
    sample: Sample, pages: httpx2.AsyncClient, tenant: httpx2.AsyncClient
):
    """Each line of the history leads to its record, or to none."""
    decided = sample.database.decisions
    for line in sample.database.history:
        answer = await pages.get(f"/ui/decisions/of?line={line.id}")
        owner = next((one.id for one in decided if one.after < line.id <= one.upto), None)
        assert answer.headers.get("location") == (owner and f"/ui/decisions/{owner}")
        assert answer.status_code == (303 if owner else 404)
    entry = next(e for e in sample.database.entries.values() if e.namespace == "team-vision")
    assert "/ui/decisions/of?line=" in (await pages.get(f"/ui/workloads/{entry.uid}")).text
    assert "/ui/decisions/of" not in (await tenant.get(f"/ui/workloads/{entry.uid}")).text
    assert (await tenant.get("/ui/decisions/of?line=3")).status_code == 403
