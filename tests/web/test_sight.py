"""A page shows what its reader may see, and offers what he may do."""

from __future__ import annotations

import httpx2
import pytest

from tests.web.sample import Sample

OTHERS = ("team-language", "team-speech", "team-platform")
PATHS = (
    "/ui/",
    "/ui/queues",
    "/ui/queues/vision",
    "/ui/workloads",
    "/ui/evictions",
    "/ui/nodes",
    "/ui/nodes?q=gpu-",
    "/ui/nodes?q=team-language",
    "/ui/nodes/data",
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_tenant_reads_no_name_of_another_team(tenant: httpx2.AsyncClient, path: str):
    """But for the message of an eviction of his own gang, which names for whom it was."""
    answer = await tenant.get(path)
    assert answer.status_code == 200
    text = answer.text.replace("with <strong>team-language</strong>", "").replace('value="team-language"', "").replace("q=team-language", "")  # fmt: skip
    lines = [line for line in text.splitlines() if "Preempted" not in line]
    assert [line for line in lines if any(f"{other}/" in line for other in OTHERS)] == []


async def test_a_tenant_sees_his_own_gangs_on_the_map_and_others_without_a_name(
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


async def test_actions_are_offered_to_who_may(
    sample: Sample, tenant: httpx2.AsyncClient, pages: httpx2.AsyncClient
):
    entry = next(e for e in sample.database.entries.values() if e.namespace == "team-vision")
    mine = (await tenant.get(f"/ui/workloads/{entry.uid}")).text
    everything = (await pages.get(f"/ui/workloads/{entry.uid}")).text
    assert 'data-action="hold"' in mine
    assert 'data-action="priority"' not in mine
    assert 'data-action="priority"' in everything


async def test_an_action_that_makes_no_sense_says_why(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/workloads/run-00001")).text
    button = text[text.index('data-action="release"') :].partition("</button>")[0]
    assert "disabled" in button
    assert "nobody holds it" in button
