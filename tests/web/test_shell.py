"""The common parts of all pages: navigation by rights, the search, and problem pages."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2
import pytest

from queuectl.api.access import ANONYMOUS, Guard
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.body import MAX_FORM_BYTES
from queuectl.domain.errors import TooManyReviews
from queuectl.domain.identity import Caller, Right
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.search import LONGEST_SEARCH
from queuectl.objects.errors import Address, DocumentError
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.conftest import talking_to
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people, signed_app
from tests.web.conftest import app_over
from tests.web.sample import Sample

TENANT = "of-the-tenant"
HOSTILE = ("%", "_", "\\\\", "\\0", "'", "<script>", "x" * 400, "\u6f22", "tr\u00e9", " ", "a/b/c")


def links(text: str, navigation: str) -> list[str]:
    found = re.search(rf'<nav class="{navigation}".*?</nav>', text, re.DOTALL)
    return re.findall('href="([^"]+)"', found[0]) if found else []


async def test_each_page_is_at_most_two_links_away(pages: httpx2.AsyncClient):
    pages_of = {}
    for group in links((await pages.get("/ui/")).text, "nav"):
        text = (await pages.get(group)).text
        assert text.count('aria-current="true"') == 1
        assert 'aria-current="page"' in text
        pages_of[group] = links(text, "subnav")
    assert list(pages_of) == ["/ui/workloads", "/ui/", "/ui/usage", "/ui/decisions"]
    offered = [page for group in pages_of.values() for page in group]
    assert len(offered) == len(set(offered)) == 14
    for page in offered:
        text = (await pages.get(page)).text
        assert f'href="{page}" aria-current="page"' in text, page


async def test_a_viewer_gets_the_groups_in_which_they_may_see_a_page(tenant: httpx2.AsyncClient):
    text = (await tenant.get("/ui/")).text
    assert links(text, "nav") == ["/ui/workloads", "/ui/", "/ui/evictions"]
    assert "/ui/nodes" in links(text, "subnav")


@pytest.mark.parametrize("path", ["/ui/nowhere", "/ui/workloads/nowhere", "/ui/queues/nowhere"])
async def test_a_problem_page_keeps_navigation_and_search(pages: httpx2.AsyncClient, path: str):
    answer = await pages.get(path)
    assert answer.status_code == 404
    assert len(links(answer.text, "nav")) == 4
    assert 'class="find"' in answer.text


async def test_a_page_of_an_outage_keeps_the_navigation_and_appears_by_itself(
    pages: httpx2.AsyncClient, sample: Sample
):
    sample.database.down = True
    answer = await pages.get("/ui/evictions")
    assert answer.status_code == 503
    assert len(links(answer.text, "nav")) == 4
    assert 'hx-get="/ui/evictions"' in answer.text
    assert (await pages.get("/ui/search/options?q=tts")).status_code == 503
    assert (await pages.get("/ui/alive")).status_code == 503


async def test_a_page_learns_that_its_viewers_rights_cannot_be_checked(sample: Sample):
    access = people()
    access.masters.add(ANONYMOUS.name)
    async with talking_to(app_over(sample, Guard(access))) as client:
        assert (await client.get("/ui/alive")).status_code == 204
        access.down = True
        answer = await client.get("/ui/alive")
    assert (answer.status_code, "cluster-unavailable" in answer.text) == (503, True)


class FewReviews:
    """All rights, after a number of access reviews no more of them for a minute."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def may(self, caller: Caller, right: Right) -> bool:
        self.left -= 1
        if self.left < 0:
            raise TooManyReviews("what you may do needs too many access reviews", 59.5)
        return True


@pytest.mark.parametrize("reviews", [0, 1])
async def test_a_page_names_the_limit_of_access_reviews_and_no_outage(sample: Sample, reviews: int):
    typed = {"of": "clusterqueues/vision", "version": "1", "text": "kind: typed"}
    async with talking_to(app_over(sample, Guard(FewReviews(reviews)))) as client:
        answer = (
            await client.post("/ui/config/check?of=clusterqueues/vision", data=typed)
            if reviews
            else await client.get("/ui/workloads")
        )
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert "needs too many access reviews; name a namespace, or try" in answer.text
    assert "database" not in answer.text
    assert ("kind: typed" in answer.text) == bool(reviews)


async def test_the_page_of_a_problem_has_the_headers_of_the_problem(
    pages: httpx2.AsyncClient, sample: Sample
):
    large = {"text": "x" * (MAX_FORM_BYTES + 1)}
    assert (await pages.post("/ui/config/check", data=large)).headers["connection"] == "close"
    sample.database.down = True
    assert (await pages.get("/ui/evictions")).headers["retry-after"] == "2"


async def test_a_page_names_a_stored_document_that_this_release_refuses(
    pages: httpx2.AsyncClient, sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    async def refused(*_: object) -> object:
        raise DocumentError(Address(name="ClusterQueue/vision"), "spec.cohortName", "is not a name")

    monkeypatch.setattr(sample.store, "config_changes", refused)
    answer = await pages.get("/ui/queues/vision")
    assert answer.status_code == 422
    assert "ClusterQueue/vision: spec.cohortName" in answer.text
    assert len(links(answer.text, "nav")) == 4


async def test_a_refusal_keeps_the_navigation_and_an_unknown_caller_gets_none(sample: Sample):
    app = signed_app(sample.store, people(), open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with asking(app, NO_RIGHTS) as client:
        refused = await client.get("/ui/audit")
        assert (refused.status_code, links(refused.text, "nav")) == (403, ["/ui/mine", "/ui/", "/ui/evictions"])  # fmt: skip
        assert (await client.get("/api/v1/search?q=t")).json()["items"] == []
    async with asking(app, ADMIN) as client:
        assert links((await client.get("/ui/mine")).text, "subnav")[0] == "/ui/mine"
    async with asking(app, None) as client:
        assert (await client.get("/ui/alive")).status_code == 401
        assert links((await client.get("/ui/signin")).text, "nav") == []


async def test_a_search_shows_what_the_viewer_may_see(
    pages: httpx2.AsyncClient, tenant: httpx2.AsyncClient, sample: Sample
):
    matching = {e.uid for e in sample.database.entries.values() if "e" in e.ref}
    answer = (await pages.get("/api/v1/search", params={"q": "e"})).json()
    assert len(answer["items"]) == min(50, len(matching))
    assert answer["more"] is (len(matching) > 50)
    assert answer["onlyNewest"] is True
    own = (await tenant.get("/ui/search?q=team-")).text.split("<main", 1)[1]
    assert "team-vision/" in own
    for other in ("team-speech/", "team-language/", "team-platform/"):
        assert other not in own
        assert 'role="option"' not in (await tenant.get(f"/ui/search/options?q={other}")).text
    access = people()
    access.know(TENANT, "ann", Right("list", "workloads", "team-vision"))
    async with asking(signed_app(sample.store, access), TENANT) as client:
        items = (await client.get("/api/v1/search?q=team-")).json()["items"]
    assert {item["namespace"] for item in items} == {"team-vision"}


async def test_help_links_to_the_documentation_that_a_setting_names(sample: Sample):
    app = signed_app(sample.store, people())
    url = "https://docs.example.com/queuectl?a=1&b=2"
    add_dashboard(app, sample.store, app.state.guard, documentation_url=url)
    async with asking(app, ADMIN) as client:
        assert (
            'href="https://docs.example.com/queuectl?a=1&amp;b=2"'
            in (await client.get("/ui/evictions")).text
        )


async def test_a_whole_name_leads_to_the_page_of_the_workload(
    pages: httpx2.AsyncClient, sample: Sample
):
    entry = sample.database.entries["run-00001"]
    for text in (entry.ref, entry.name, entry.uid, entry.ref.upper()):
        answer = await pages.get("/ui/search", params={"q": text})
        assert answer.headers.get("location") == f"/ui/workloads/{entry.uid}", text


async def test_a_strange_text_finds_nothing_and_shows_nothing_else(pages: httpx2.AsyncClient):
    for text in HOSTILE:
        answer = await pages.get("/ui/search", params={"q": text})
        assert answer.status_code == 200
        assert "<tbody>" not in answer.text, text
        assert "<script>x" not in answer.text
        assert "<script>" not in answer.text.split("<main", 1)[1]
        options = await pages.get("/ui/search/options", params={"q": text})
        assert (options.status_code, 'role="option"' in options.text) == (200, False), text
        expected = 422 if len(text) > LONGEST_SEARCH else 200
        assert (await pages.get("/api/v1/search", params={"q": text})).status_code == expected


@pytest.mark.parametrize("path", ["/ui/search", "/ui/search/options"])
async def test_a_search_shows_how_a_job_ended(pages: httpx2.AsyncClient, path: str):
    text = (await pages.get(f"{path}?q=speech/tts")).text
    assert 'class="state Finished Failed"' in text
    assert 'class="state Finished Deleted"' in text


async def test_a_name_without_a_match_lists_no_other_jobs(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/workloads?q=retrieval%26x")).text
    assert 'href="/ui/workloads/' not in text
    assert 'href="/ui/search?q=retrieval%26x"' in text


async def test_pages_have_the_names_of_their_links(pages: httpx2.AsyncClient):
    for path, heading in (("/ui/workloads", "All jobs"), ("/ui/mine", "Jobs by user")):
        assert f"<h1>{heading}</h1>" in (await pages.get(path)).text
    for path in ("/ui/workloads", "/ui/mine", "/ui/workloads/run-00001"):
        assert ">Workloads</a>" not in (await pages.get(path)).text
    assert ">ClusterQueue vision," in (await pages.get("/ui/budgets")).text


async def test_a_page_of_a_job_has_one_mean_of_its_utilization(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/workloads/run-00001")).text
    assert "Mean " in text
    assert "on average" not in text


async def test_text_of_users_neither_reverses_nor_fills_a_page(
    pages: httpx2.AsyncClient, sample: Sample
):
    entry = sample.database.entries["wait-00001"]
    reason = Reason(Code.QUEUED, "\u202e" + "x" * 100_000)
    hostile = replace(entry, user="\u202enimda", reason=reason)
    sample.database.entries["wait-00001"] = hostile
    for path in ("/ui/workloads", f"/ui/queues/{entry.cluster_queue}", "/ui/workloads/wait-00001"):
        text = (await pages.get(path)).text
        assert "\u202e" not in text, path
        assert "x" * 1000 not in text, path
