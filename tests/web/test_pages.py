"""Each page shows its content, and names and reasons are never markup."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2
import pytest

from queuectl.api.access import Guard
from queuectl.api.command_batches import BATCH_ACTIONS
from queuectl.domain.checks import Checks, CheckState, CheckStatus
from queuectl.domain.identity import Right
from queuectl.domain.ledger import State
from queuectl.domain.queries import MOST_URGENT_FIRST, PagePosition
from queuectl.domain.reasons import Code, Reason
from queuectl.web.pages import audit, usage
from queuectl.web.vendor import STATIC, digest, listed
from tests.api.conftest import talking_to
from tests.web.conftest import FixedRights, app_over
from tests.web.kept import PLANNED
from tests.web.sample import Sample

SCRIPT = "<script>alert(1)</script>"

PAGES: dict[str, tuple[str, ...]] = {
    "/ui/": (
        "GPUs now",
        "Why gangs are pending",
        "Last 24 hours",
        "Oldest pending",
        "Latest evictions",
    ),
    "/ui/queues": ("language", "platform", "speech", "vision"),
    "/ui/queues/vision": (
        "Pending gangs",
        "/ui/localqueues/team-vision/default",
        "Cohort research",
    ),
    "/ui/cohorts": ("research", "Borrowed", "Lent", "/ui/queues/platform"),
    "/ui/reservations": ("Reservations", "New Reservation", "NotPlaceable"),
    "/ui/localqueues": ("team-speech/default", "/ui/queues/speech"),
    "/ui/localqueues?namespace=team-vision": ("team-vision/default", "Clear filters"),
    "/ui/localqueues/team-vision/default": (
        "/ui/queues/vision",
        "In ClusterQueue",
        "of flavor h100",
    ),
    "/ui/workloads": ("team-language/", "Running"),
    "/ui/workloads?state=Held&state=Backoff": (
        "tts-aside-0",
        "-aside-1",
        "Filters: Held or Backoff",
    ),
    "/ui/workloads?all=true": ("✓</i>Succeeded", "Include finished"),
    "/ui/workloads?user=nobody": ("Clear the filter", "include finished workloads"),
    "/ui/suggestions": (
        '<option value="team-vision">',
        '<option value="vision">',
        '<option value="ann">',
    ),
    "/ui/mine?user=ann": ("tts-aside-0", "Release it when it can start.", "Finished last"),
    "/ui/mine?user=&namespace=team-vision": ("team-vision/", "Suggested fixes", "in about"),
    "/ui/mine?user=nobody": ("has no queued or running jobs.", "queuectl.dev/queue-name"),
    "/ui/mine": ("does not authenticate its users", "Enter a user, or choose a namespace."),
    "/ui/workloads?user=ben&sort=-gpus": ('aria-sort="descending"', "ben"),
    "/ui/workloads/run-00001/pods": (
        "kubectl logs -n team-",
        "--all-containers -p",
        "CrashLoopBackOff",
    ),
    "/ui/workloads/run-00001": (
        "Placement",
        "History",
        "block-00 / rack-00",
        "kubectl logs -n team-",
    ),
    "/ui/workloads/wait-00000": (
        "Reserved placement",
        "Queue position",
        "expected start: ",
        "Expected run time",
        "learned from 24 gangs",
    ),
    f"/ui/workloads/{PLANNED}": ("It is planned to start", "It moved 1 time", "end before"),
    "/ui/workloads/wait-00000/why": ("quota: it needs 40 GPUs", "minimum"),
    "/ui/nodes": ("64 nodes", "By rack", "By block"),
    "/ui/nodes?q=rack-01": ("gpu-00-01-00", "gpu-01-01-03"),
    "/ui/timeline": (
        "Pending gangs",
        "Running gangs",
        "90% chance within ",
        "The bars show the next",
        'class="tick"',
    ),
    "/ui/timeline?queue=vision&span=1d": ("The bars show the next 1 d", "team-vision/"),
    "/ui/timeline?queue=nowhere": ("No gang is pending.", "No gang runs."),
    "/ui/evictions": ("Lost work, GPU-hours", 'data-h="GPUs freed">32<', 'lost GPU-hours">1.5<'),
    "/ui/decisions": ("Pending reasons", "Waiting for quota", "a better plan can exist"),
    "/ui/decisions/3": ("Changed gangs", "Reasons of the pending gangs", "Solver runs"),
    "/ui/usage": ("By namespace", "team-language", "GPUs of the nodes", "Cost, EUR"),
    "/ui/usage?by=queue&span=168h": ("By LocalQueue", "team-vision/default"),
    "/ui/usage?by=user&span=720h": ("By user", "cleo", "(none)"),
    "/ui/usage?by=workload": ("By workload", "/ui/workloads/run-00001"),
    "/ui/usage?by=label:team&span=days&from=2026-11-17&to=2026-11-18": (
        "By label team",
        "2026-11-17 00:00 UTC</time> to ",
    ),
    "/ui/budgets": (
        "ClusterQueue vision",
        "GPU-hours committed",
        "paper deadline",
        "team-speech",
        "GPU-hours over)",
        "spent or committed",
    ),
    "/ui/audit": ("hold ", ">ClusterQueue vision</a>", "/ui/workloads/", "not known", "× refused"),
    "/ui/audit?caller=ann&path=/api/v1/clusterqueues": (
        "apply ",
        ">ClusterQueue vision</a>",
        "ann",
    ),
    "/ui/whatif": ("Nodes to drain", "Manifests"),
    "/ui/search?q=tts": ("tts-aside-4", "Finished", "those that have not finished first"),
    "/ui/search?q=t": ("only the newest",),
    "/ui/search?q=nothing-has-it": ("No job that you may see has", "nothing-has-it"),
    "/ui/search": ("Enter a part of a name",),
    "/ui/search/options?q=tts": ('role="option"', "tts-aside-0"),
    "/ui/config": ("ClusterQueue", "team-vision/default", "New Topology"),
    "/ui/config/clusterqueues/vision": ("cohortName: research", "Check", "Latest changes"),
    "/ui/config/localqueues/team-vision/default": ("clusterQueue: vision", "Related pages"),
    "/ui/config/new?kind=quotaoverrides": ("New QuotaOverride", "2026-11-25T00:00:00Z"),
    "/ui/config/delete?of=clusterqueues/vision": ("Consequences", "does not exist"),
    "/ui/signin": ("Paste a Kubernetes bearer token",),
}


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_shows(pages: httpx2.AsyncClient, path: str):
    answer = await pages.get(path)
    assert answer.status_code == 200, answer.text[:2000]
    missing = [text for text in PAGES[path] if text not in answer.text]
    assert missing == []


async def test_the_root_leads_to_the_first_page(pages: httpx2.AsyncClient):
    assert (await pages.get("/")).headers["location"] == "/ui/home"
    assert (await pages.get("/ui/home")).headers["location"] == "/ui/"


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_needs_nothing_inline(pages: httpx2.AsyncClient, path: str):
    """The content security policy blocks it."""
    answer = await pages.get(path)
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert " style=" not in answer.text
    assert "<style" not in answer.text
    assert "<script>" not in answer.text
    assert " onclick" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ui/nowhere", 404),
        ("/ui/queues/nowhere", 404),
        ("/ui/localqueues/team-vision/nowhere", 404),
        ("/ui/localqueues/nowhere/default", 404),
        ("/ui/workloads/nobody", 404),
        ("/ui/workloads/%00%2f..%2f", 404),
        ("/ui/workloads?cursor=!", 422),
        ("/ui/workloads?sort=color", 422),
        ("/ui/mine?user=ann&cursor=!", 422),
        ("/ui/queues/vision?cursor=!", 422),
        ("/ui/decisions/999999", 404),
        ("/ui/decisions/x", 404),
        ("/ui/decisions/of?line=999999", 404),
        ("/ui/config/clusterqueues/nowhere", 404),
        ("/ui/config/clusterqueues/%00", 404),
        ("/ui/config/localqueues/default", 404),
        ("/ui/config/workloads/x", 404),
        ("/ui/config/new?kind=workloads", 404),
        ("/ui/config/delete?of=x", 404),
        ("/ui/config/check", 405),
        ("/ui/usage?by=nonsense", 422),
        ("/ui/usage?span=days&from=yesterday&to=2026-11-20", 422),
        ("/ui/usage?span=days&from=2026-11-20&to=2026-11-19", 422),
        ("/ui/usage?span=days&from=2020-01-01&to=2026-11-19", 422),
    ],
)
async def test_an_error_is_a_page(pages: httpx2.AsyncClient, path: str, status: int):
    answer = await pages.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "Go to your first page" in answer.text


@pytest.mark.parametrize(
    "path",
    ["/ui/queues/vision?skip=-1", "/ui/queues/vision?skip=99999999999", "/ui/evictions?before=x",
     "/ui/workloads?all=nonsense&state=", "/ui/nodes?topology=nope&q=%E2%98%83",
     "/ui/decisions?before=x", "/ui/audit?before=-3&caller=%00", "/ui/usage?span=ever", "/ui/workloads/run-00001/asked?reads=x"],
)  # fmt: skip
async def test_a_wrong_parameter_is_ignored(pages: httpx2.AsyncClient, path: str):
    assert (await pages.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("state=Nonsense", "&#39;Nonsense&#39; is not a state. The states are Pending, "),
        ("state=Held&state=%3Cb%3E", "&#39;&lt;b&gt;&#39; is not a state."),
        (f"state={'9' * 400}", "is not a state."),
        ("reason=Nonsense", "&#39;Nonsense&#39; is not a reason."),
    ],
)
async def test_a_wrong_filter_has_a_message_and_keeps_the_form(
    pages: httpx2.AsyncClient, query: str, message: str
):
    answer = await pages.get(f"/ui/workloads?user=ann&{query}")
    assert answer.status_code == 422
    assert message in answer.text
    assert 'name="user" value="ann"' in answer.text
    assert 'href="/ui/workloads/' not in answer.text


async def test_a_list_begins_with_the_newest_that_waits_and_has_finished_ones_only_when_asked(
    sample: Sample, pages: httpx2.AsyncClient
):
    def listed(text: str) -> list[str]:
        return re.findall(r'<td class="name"><a href="/ui/workloads/([^"]+)"', text)

    entries = sample.database.entries
    ordered = sorted(entries, key=lambda u: PagePosition.of(entries[u], MOST_URGENT_FIRST).key, reverse=True)  # fmt: skip
    plain = listed((await pages.get("/ui/workloads")).text)
    whole = listed((await pages.get("/ui/workloads?all=true")).text)
    assert plain == [uid for uid in ordered if entries[uid].state is not State.FINISHED]
    assert whole == ordered
    assert entries[whole[-1]].state is State.FINISHED
    assert entries[plain[0]].state in (State.PENDING, State.RESERVED)
    assert listed((await pages.get("/ui/workloads?state=Finished")).text) == whole[len(plain) :]
    assert listed((await pages.get("/ui/workloads?state=Held&all=true")).text) == [
        "aside-0",
        *whole[len(plain) :],
    ]


async def test_a_list_without_any_workload_shows_how_to_queue_one(
    sample: Sample, pages: httpx2.AsyncClient, tenant: httpx2.AsyncClient
):
    sample.database.entries.clear()
    text = (await pages.get("/ui/workloads")).text
    assert "queuectl.dev/queue-name: QUEUE" in text
    assert "kubectl create -f job.yaml" in text
    assert "Clear the filter" not in text


async def test_a_caller_without_any_namespace_learns_which_right_is_missing(sample: Sample):
    async with talking_to(app_over(sample, Guard(FixedRights()))) as client:
        for path in ("/ui/workloads", "/ui/mine?user=ann"):
            text = (await client.get(path)).text
            assert "You may not list workloads in any namespace." in text
            assert 'id="bulk"' not in text
        assert "<option" not in (await client.get("/ui/suggestions")).text


async def test_suggestions_are_those_of_visible_namespaces(tenant: httpx2.AsyncClient):
    text = (await tenant.get("/ui/suggestions")).text
    assert '<option value="team-vision">' in text
    assert "team-speech" not in text
    assert '<option value="speech">' not in text


async def test_a_list_offers_the_commands_that_the_caller_may_give(
    sample: Sample, pages: httpx2.AsyncClient
):
    def offered(text: str) -> list[str]:
        return re.findall(r'<option value="(\w+)" data-label', text)

    assert offered((await pages.get("/ui/workloads")).text) == [*BATCH_ACTIONS]
    rights = FixedRights(
        Right("list", "workloads"), Right("create", "workloads/hold", "team-vision")
    )
    async with talking_to(app_over(sample, Guard(rights))) as client:
        assert offered((await client.get("/ui/workloads")).text) == ["hold"]
        text = (await client.get("/ui/workloads?namespace=team-speech")).text
        assert offered(text) == []
        assert 'type="checkbox" name="workload"' not in text


async def test_a_name_leads_to_its_workload_or_to_all_that_have_it(
    sample: Sample, pages: httpx2.AsyncClient
):
    entry = sample.database.entries["run-00001"]
    asked = f"/ui/workloads?q={entry.ref}"
    assert (await pages.get(asked)).headers["location"] == "/ui/workloads/run-00001"
    twin = replace(entry, uid="twin", kind="PyTorchJob" if entry.kind == "Job" else "Job")
    sample.database.entries["twin"] = twin
    listed = (await pages.get(asked)).text
    assert f"Several workloads have the name <strong>{entry.ref}</strong>" in listed
    assert all(f'"/ui/workloads/{uid}"' in listed for uid in ("run-00001", "twin"))
    assert "/ui/workloads/wait-00001" not in listed
    sample.database.entries["twin"] = replace(twin, state=State.FINISHED)
    assert (await pages.get(asked)).headers["location"] == "/ui/workloads/run-00001"


async def test_names_and_reasons_are_never_markup(sample: Sample, pages: httpx2.AsyncClient):
    entry = sample.database.entries["wait-00001"]
    hostile = replace(
        entry, name=SCRIPT, queue='"><b>', reason=Reason(Code.QUEUED, SCRIPT), queued_at=0.0
    )
    sample.database.entries["wait-00001"] = hostile
    for path in (
        "/ui/",
        f"/ui/queues/{entry.cluster_queue}",
        f"/ui/workloads?namespace={entry.namespace}",
        "/ui/workloads/wait-00001",
        f"/ui/workloads?q={SCRIPT}",
        f"/ui/nodes?q={SCRIPT}",
        f"/ui/audit?caller={SCRIPT}&path={SCRIPT}",
        f"/ui/usage?by={SCRIPT}",
        f"/ui/decisions/{SCRIPT}",
        f"/ui/signin?next={SCRIPT}",
    ):
        answer = await pages.get(path)
        assert SCRIPT not in answer.text, path
        assert '"><b>' not in answer.text, path


async def test_a_gang_is_found_by_its_name(sample: Sample, pages: httpx2.AsyncClient):
    entry = sample.database.entries["run-00001"]
    answer = await pages.get("/ui/workloads", params={"q": entry.ref})
    assert answer.headers["location"] == "/ui/workloads/run-00001"


async def test_pending_gangs_are_in_queue_order(sample: Sample, pages: httpx2.AsyncClient):
    waiting = await sample.store.waiting("vision")
    assert len(waiting) > 3
    text = (await pages.get("/ui/queues/vision")).text
    line = text[text.index('id="pending"') : text.index('id="admitted"')]
    places = [line.index(f">{entry.ref}<") for entry in waiting]
    assert places == sorted(places)


async def test_groups_beyond_the_largest_are_one_row_and_nothing_is_left_out(
    sample: Sample, pages: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    everything = len(sample.database.usage.subjects)
    monkeypatch.setattr(usage, "SHOWN", 2)
    text = (await pages.get("/ui/usage?by=workload&span=168h")).text
    rows = text[text.index('id="groups"') :].split("<tr>")
    assert f"{everything - 2} others" in rows[4]
    assert f'data-h="workloads">{everything - 2}<' in rows[4]


async def test_a_deleted_gang_is_not_a_link(sample: Sample, pages: httpx2.AsyncClient):
    gone = sample.database.entries.pop("run-00001")
    text = (await pages.get("/ui/usage?by=workload")).text
    assert gone.ref in text
    assert "/ui/workloads/run-00001" not in text
    assert "/ui/workloads/run-00002" in text


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/api/v1/workloads/a-1/hold", "/ui/workloads/a-1"),
        ("/api/v1/workloads/a%2F1/hold", "/ui/workloads/a%252F1"),
        ("/api/v1/namespaces/team/workloads/gang/preempt", "/ui/workloads?q=team/gang"),
        ("/api/v1/clusterqueues/vision", "/ui/config/clusterqueues/vision"),
        ("/api/v1/clusterqueues/vision?dry_run=true", "/ui/config/clusterqueues/vision"),
        ("/api/v1/clusterqueues/vision/stop", "/ui/config/clusterqueues/vision"),
        ("/api/v1/namespaces/team/localqueues/default", "/ui/config/localqueues/team/default"),
        (
            "/api/v1/namespaces/team/localqueues/default/resume",
            "/ui/config/localqueues/team/default",
        ),
        ("/ui/config/localqueues/team/default", "/ui/config/localqueues/team/default"),
        ("/api/v1/clusterqueues/%3Cb%3E", None),
        ("/api/v1/namespaces/team/clusterqueues/vision", None),
        ("/elsewhere", None),
    ],
)
def test_a_request_leads_to_the_page_about_what_it_was_for(path: str, page: str | None):
    assert audit.page_of(path) == page


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ("/ui/queues/vision", "/ui/queues/vision"),
        ("https://evil.example/", "/ui/home"),
        ("//evil.example/ui/", "/ui/home"),
        ("/ui//evil.example", "/ui/home"),
        ("/ui/\\evil", "/ui/home"),
        ("javascript:alert(1)", "/ui/home"),
        ("", "/ui/home"),
        ("/ui/", "/ui/home"),
    ],
)
async def test_signing_in_leads_to_our_own_pages_only(
    pages: httpx2.AsyncClient, wanted: str, shown: str
):
    answer = await pages.get("/ui/signin", params={"next": wanted})
    assert f'data-next="{shown}"' in answer.text


async def test_without_a_snapshot_the_pages_show_the_ledger(
    sample: Sample, pages: httpx2.AsyncClient
):
    sample.cluster_reader.snapshot = None
    overview, nodes = await pages.get("/ui/"), await pages.get("/ui/nodes")
    assert "Gangs pending" in overview.text
    assert "has not read the cluster yet" in overview.text
    assert "has not read the cluster yet" in nodes.text
    assert "use not known yet" in (await pages.get("/ui/queues/vision")).text
    assert (await pages.get("/ui/nodes/data")).status_code == 503


async def test_an_outage_of_the_database_is_a_page(sample: Sample, pages: httpx2.AsyncClient):
    sample.database.down = True
    answer = await pages.get("/ui/")
    assert answer.status_code == 503
    assert "does not respond" in answer.text


async def test_every_state_has_a_sign(pages: httpx2.AsyncClient):
    for state in State:
        answer = await pages.get("/ui/workloads", params={"state": str(state)})
        assert answer.status_code == 200


async def test_static_files_are_kept_as_long_as_they_are_the_same(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/")).text
    address = text[text.index("/ui/static/app.css") :].partition('"')[0]
    path, _, digest_of_this = address.partition("?v=")
    kept = {
        query: (await pages.get(f"{path}?{query}")).headers["cache-control"]
        for query in (f"v={digest_of_this}", "v=0123456789ab", "other=1", "")
    }
    assert "immutable" in kept.pop(f"v={digest_of_this}")
    # The address of another release, during an upgrade: the file of this one is not kept for it.
    assert kept == {"v=0123456789ab": "no-store", "other=1": "no-store", "": "no-cache"}


@pytest.mark.parametrize("file", listed(), ids=lambda file: file["name"])
def test_a_vendored_file_is_what_was_published(file: dict[str, str]):
    assert digest((STATIC / file["name"]).read_bytes()) == file["sha256"]


async def test_the_page_of_a_workload_lists_its_admission_checks(
    sample: Sample, pages: httpx2.AsyncClient
) -> None:
    entry = next(e for e in sample.database.entries.values() if e.state is State.RUNNING)
    statuses = (
        CheckStatus("budget", CheckState.READY, message="approved"),
        CheckStatus("data", message=SCRIPT),
    )
    sample.database.entries[entry.uid] = replace(entry, checks=Checks(statuses))
    page = (await pages.get(f"/ui/workloads/{entry.uid}")).text
    assert "Admission checks" in page
    for cells in ("<td>budget</td><td>Ready</td>", "<td>data</td><td>Pending</td>"):
        assert cells in page
    assert "approved" in page
    assert SCRIPT not in page
