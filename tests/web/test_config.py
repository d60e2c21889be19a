"""Configuration on the pages: found, checked, applied and deleted by the rules of the REST API, and never by accident."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api import problems
from queuectl.api.access import Guard
from queuectl.api.auth import layers
from queuectl.api.auth.authentication import PROOF, SESSION_PATH
from queuectl.api.body import Bodies
from queuectl.api.database_check import DatabaseCheck
from queuectl.api.job_efficiency import JobEfficiencies
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.routes import config
from queuectl.api.search import WorkloadSearch
from queuectl.api.subscriptions import Subscriptions
from queuectl.api.usage_history import UsageHistory
from queuectl.domain.identity import Right
from queuectl.domain.job_usage import NO_SOURCES
from queuectl.domain.queries import DocumentKey
from queuectl.notify.receivers_file import ReceiverList
from queuectl.objects.configuration.config_kinds import BY_KIND, CONFIG_KINDS
from queuectl.objects.configuration.owners import Owner
from queuectl.web.app import add_dashboard
from queuectl.web.configuration import text_of
from queuectl.web.starts import STARTS
from tests.api.conftest import talking_to
from tests.api.signed import ADMIN, HOST, asking, people, signed_app
from tests.web.conftest import FixedRights
from tests.web.sample import NOW, Sample

KIND = BY_KIND["ClusterQueue"]
QUEUE = DocumentKey("ClusterQueue", "", "vision")
PAGE = "/ui/config/clusterqueues/vision"
CHECK = "/ui/config/check"


def command_service(sample: Sample, *rights: Right) -> FastAPI:
    """The pages behind the layers of the API, alongside its paths for ClusterQueues: the whole application takes ten times longer to make.

    ``rights``: of the caller; none = all rights.
    """
    app = FastAPI(openapi_url=None)
    problems.install(app)
    layers.install(app, sample.store, None, keeps_addresses=False)
    guard = Guard(FixedRights(*rights) if rights else None)
    bodies = app.state.bodies = Bodies()
    stated = app.state.stated = CurrentConfiguration(sample.store)
    app.state.efficiencies = JobEfficiencies(sample.store, stated, None, NO_SOURCES)
    app.state.subscriptions = Subscriptions(guard, sample.store, ReceiverList())
    app.state.history = UsageHistory(sample.store)
    app.state.search = WorkloadSearch(sample.store)
    app.state.database = DatabaseCheck(sample.store)
    app.state.logins = None
    owner = app.state.owner = Owner.DATABASE
    config.add_routes(app.router, guard, bodies, KIND, sample.store, sample.diagnoser, owner)
    add_dashboard(
        app, sample.store, guard, sample.cluster_reader, sample.diagnoser, clock=lambda: NOW
    )
    return app


@pytest.fixture
async def pages(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with all rights."""
    async with talking_to(command_service(sample)) as client:
        yield client


@pytest.fixture
async def without_rights(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may list the workloads of one team."""
    async with talking_to(
        command_service(sample, Right("list", "workloads", "team-vision"))
    ) as client:
        yield client


@dataclass
class Editor(HTMLParser):
    """The form of a page as a browser reads and sends it."""

    fields: dict[str, str] = field(default_factory=dict)
    applies_to: str = ""
    _typing: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, answer: httpx2.Response) -> Editor:
        made = cls()
        made.feed(answer.text)
        made.fields["text"] = made.fields["text"].removeprefix("\n")
        return made

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "input" and given.get("type") == "hidden":
            self.fields[given["name"]] = given["value"]
        if tag == "textarea":
            self._typing = True
            self.fields["text"] = ""
        if given.get("value") == "apply":
            self.applies_to = given["formaction"]

    def handle_endtag(self, tag: str) -> None:
        self._typing = self._typing and tag != "textarea"

    def handle_data(self, data: str) -> None:
        if self._typing:
            self.fields["text"] += data

    def typed(self, text: str) -> dict[str, str]:
        return {**self.fields, "text": text}

    def replaced(self, old: str, new: str) -> dict[str, str]:
        assert old in self.fields["text"]
        return self.typed(self.fields["text"].replace(old, new))


async def opened(pages: httpx2.AsyncClient, path: str = PAGE) -> Editor:
    return Editor.of(await pages.get(path))


async def checked(pages: httpx2.AsyncClient, fields: dict[str, str]) -> Editor:
    answer = await pages.post(CHECK, data=fields)
    assert answer.status_code == 200, answer.text
    return Editor.of(answer)


async def applied(pages: httpx2.AsyncClient, editor: Editor) -> httpx2.Response:
    return await pages.post(editor.applies_to, data={**editor.fields, "do": "apply"})


def policy(sample: Sample) -> str:
    spec = sample.database.documents[QUEUE].document["spec"]
    return str(spec["preemption"]["withinClusterQueue"])


async def meanwhile(sample: Sample, strategy: str = "StrictFIFO", policy: str = "") -> None:
    """Change the queue as another user."""
    document = copy.deepcopy(dict(sample.database.documents[QUEUE].document))
    document["spec"]["queueingStrategy"] = strategy
    if policy:
        document["spec"]["preemption"]["withinClusterQueue"] = policy
    await sample.store.put_config(document)


# -- finding


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("", ["team-vision/default", "vision", "fabric", "New QuotaOverride"], []),
        ("?q=speech", [">speech<", "team-speech/default"], [">vision<", "fabric"]),
        ("?q=Team-Speech/default", ["team-speech/default"], [">speech<"]),
        ("?q=fabric", [">fabric<", ">h100<"], [">vision<"]),
        ("?kind=topologies", [">fabric<"], [">h100<", ">vision<"]),
        ("?kind=nonsense", [">fabric<", ">vision<"], []),
        ("?q=nothing-says-this", ["No object that you may see matches"], ["<table"]),
    ],
)
async def test_objects_are_found_by_name_kind_and_content(
    pages: httpx2.AsyncClient, query: str, shown: list[str], hidden: list[str]
):
    text = (await pages.get(f"/ui/config{query}")).text
    assert [one for one in shown if one not in text] == []
    assert [one for one in hidden if one in text] == []


async def test_a_second_configuration_is_not_offered(pages: httpx2.AsyncClient, sample: Sample):
    offer = "New Configuration"
    assert offer not in (await pages.get("/ui/config")).text
    del sample.database.documents[DocumentKey("Configuration", "", "default")]
    assert offer in (await pages.get("/ui/config")).text


# -- checking and applying


async def test_a_check_shows_the_changes_and_stores_nothing(
    pages: httpx2.AsyncClient, sample: Sample
):
    sample.diagnoser.running = sample.cluster_reader.snapshot
    before, lines = copy.deepcopy(sample.database.documents), len(sample.database.audit)
    editor = await opened(pages)
    fields = editor.replaced("name: h100", "name: h200") | {"do": "check"}
    answer = await pages.post(CHECK, data=fields)
    for word in (
        "2 fields would change",
        "spec.resourceGroups[0].flavors[h200]",
        "ResourceFlavor h200 does not exist",
        "Running gangs would exceed these quotas",
        "/ui/workloads?q=team-vision/",
    ):
        assert word in answer.text
    assert Editor.of(answer).fields["text"] == fields["text"]
    assert sample.database.documents == before
    assert len(sample.database.audit) == lines


async def test_a_check_of_the_same_offers_nothing_to_apply(pages: httpx2.AsyncClient):
    editor = await opened(pages)
    answer = await pages.post(CHECK, data=editor.fields)
    assert "Nothing would change" in answer.text
    assert Editor.of(answer).applies_to == ""


async def test_a_checked_text_is_applied_and_audited(pages: httpx2.AsyncClient, sample: Sample):
    editor = await checked(pages, (await opened(pages)).replaced("LowerPriority", "Never"))
    answer = await applied(pages, editor)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}?done=configured")
    assert policy(sample) == "Never"
    line = sample.database.audit[-1]
    assert (line.path, line.operation, line.status) == (PAGE, "putClusterQueue", 303)
    assert "spec.preemption.withinClusterQueue: 'LowerPriority' -> 'Never'" in line.detail
    assert "The object is changed." in (await pages.get(answer.headers["location"])).text
    changes = (await pages.get("/ui/config/changes?of=clusterqueues/vision")).text
    assert "withinClusterQueue" in changes


@pytest.mark.parametrize("forget", ["checked", "text"])
async def test_an_unchecked_text_is_not_applied(
    pages: httpx2.AsyncClient, sample: Sample, forget: str
):
    editor = await checked(pages, (await opened(pages)).replaced("LowerPriority", "Never"))
    typed = editor.fields["text"].replace("Never", "Any")
    editor.fields |= {"text": typed} if forget == "text" else {"checked": ""}
    answer = await applied(pages, editor)
    assert answer.status_code == (409 if forget == "checked" else 422)
    assert policy(sample) == "LowerPriority"
    assert Editor.of(answer).fields["text"] == editor.fields["text"]


async def test_a_text_changed_after_its_check_is_checked_again(
    pages: httpx2.AsyncClient, sample: Sample
):
    editor = await checked(pages, (await opened(pages)).replaced("LowerPriority", "Never"))
    editor.fields |= editor.replaced("Never", "LowerOrNewerEqualPriority")
    again = await applied(pages, editor)
    assert (again.status_code, policy(sample)) == (409, "LowerPriority")
    assert "was changed after the check" in again.text
    assert (await applied(pages, Editor.of(again))).status_code == 303
    assert policy(sample) == "LowerOrNewerEqualPriority"


# -- concurrent changes


@pytest.mark.parametrize("step", ["check", "apply"])
async def test_a_concurrent_change_is_shown_and_neither_text_is_lost(
    pages: httpx2.AsyncClient, sample: Sample, step: str
):
    editor = await opened(pages)
    fields = editor.replaced("LowerPriority", "Never")
    if step == "apply":
        editor = await checked(pages, fields)
        await meanwhile(sample)
        answer = await applied(pages, editor)
    else:
        await meanwhile(sample)
        answer = await pages.post(CHECK, data=fields)
    assert answer.status_code == 412
    assert "The object was changed in the meantime" in answer.text
    assert "StrictFIFO" in answer.text
    assert "your text reverts it" in answer.text
    assert policy(sample) == "LowerPriority"
    again = Editor.of(answer)
    assert again.fields["text"] == fields["text"]
    assert (await applied(pages, again)).status_code == 303
    assert policy(sample) == "Never"


async def test_a_field_that_both_changed_is_marked(pages: httpx2.AsyncClient, sample: Sample):
    fields = (await opened(pages)).replaced("LowerPriority", "Never")
    await meanwhile(sample, policy="LowerOrNewerEqualPriority")
    answer = await pages.post(CHECK, data=fields)
    assert "changed by both" in answer.text


async def test_a_second_change_by_others_is_a_second_conflict(
    pages: httpx2.AsyncClient, sample: Sample
):
    fields = (await opened(pages)).replaced("LowerPriority", "Never")
    await meanwhile(sample)
    again = Editor.of(await pages.post(CHECK, data=fields))
    await meanwhile(sample, policy="LowerOrNewerEqualPriority")
    assert (await applied(pages, again)).status_code == 412
    assert policy(sample) == "LowerOrNewerEqualPriority"


async def test_an_object_that_was_deleted_meanwhile_can_be_created_again(
    pages: httpx2.AsyncClient, sample: Sample
):
    editor = await checked(pages, (await opened(pages)).replaced("LowerPriority", "Never"))
    del sample.database.documents[QUEUE]
    answer = await applied(pages, editor)
    assert answer.status_code == 412
    assert "The object was deleted in the meantime" in answer.text
    assert (await applied(pages, Editor.of(answer))).headers["location"].endswith("done=created")
    assert policy(sample) == "Never"


# -- new objects


@pytest.mark.parametrize("kind", CONFIG_KINDS, ids=lambda kind: kind.kind)
async def test_the_first_text_of_a_new_object_is_valid(
    pages: httpx2.AsyncClient, sample: Sample, kind: Any
):
    sample.database.documents.clear()
    editor = await opened(pages, f"/ui/config/new?kind={kind.plural}")
    answer = await applied(pages, await checked(pages, editor.fields))
    assert answer.headers["location"].endswith("?done=created")
    assert [key.kind for key in sample.database.documents] == [kind.kind]
    assert (await pages.get(answer.headers["location"])).status_code == 200
    assert set(STARTS) == {one.kind for one in CONFIG_KINDS}


async def test_a_new_object_replaces_no_other_without_confirmation(
    pages: httpx2.AsyncClient, sample: Sample
):
    editor = await opened(pages, "/ui/config/new?kind=clusterqueues")
    fields = editor.replaced("name: team-a", "name: vision")
    answer = await pages.post(CHECK, data=fields)
    assert answer.status_code == 412
    assert "An object of this name exists already" in answer.text
    assert policy(sample) == "LowerPriority"
    assert Editor.of(answer).fields["text"] == fields["text"]


# -- what is refused

WRONG: dict[str, str] = {
    "not YAML": "kind: [",
    "a list": "- one",
    "an alias": "a: &x {b: c}\nd: *x",
    "no object": "",
    "unknown field": "spec: {}\nspeck: 1",
    "another kind": "apiVersion: queuectl.dev/v1\nkind: Cohort\nmetadata: {name: vision}",
    "another name": "apiVersion: queuectl.dev/v1\nkind: ClusterQueue\nmetadata: {name: other}\nspec: {}",
    "a wrong value": "apiVersion: queuectl.dev/v1\nkind: ClusterQueue\nmetadata: {name: vision}\n"
    "spec: {queueingStrategy: Sometimes}",
    "a character that cannot be stored": 'kind: ClusterQueue\nmetadata: {name: "vision\\0"}',
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
async def test_the_pages_refuse_with_the_messages_of_the_api_and_keep_the_text(
    pages: httpx2.AsyncClient, sample: Sample, text: str
):
    yaml = {"Content-Type": "application/yaml"}
    api = await pages.put(
        "/api/v1/clusterqueues/vision?dry_run=true", content=text.encode(), headers=yaml
    )
    answer = await pages.post(CHECK, data=(await opened(pages)).typed(text))
    assert answer.status_code == api.status_code >= 400
    problem = api.json()
    plain = Plain.of(answer.text)
    for error in problem.get("errors") or [{"field": "", "reason": problem["detail"]}]:
        assert error["field"] in plain
        assert error["reason"] in plain
    assert Editor.of(answer).fields["text"] == text
    assert Editor.of(answer).applies_to == ""


class Plain(HTMLParser):
    """The text of a page, without its markup."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    @classmethod
    def of(cls, text: str) -> str:
        made = cls()
        made.feed(text)
        return "".join(made.said)

    def handle_data(self, data: str) -> None:
        self.said.append(data)


HOSTILE = (
    "</textarea><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\n\nkind: x\n",
    "a: &amp; &lt;b&gt; 'x' \"y\"",
    "{{ 7 * 7 }} {% raw %} \u2028 \U0001f642 \x85",
)


@pytest.mark.parametrize("text", HOSTILE)
async def test_typed_text_is_kept_and_is_never_markup(pages: httpx2.AsyncClient, text: str):
    answer = await pages.post(CHECK, data=(await opened(pages)).typed(text) | {"base": text})
    assert Editor.of(answer).fields["text"] == text
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text


@pytest.mark.parametrize("text", HOSTILE[:2])
async def test_the_content_of_an_object_is_never_markup(
    pages: httpx2.AsyncClient, sample: Sample, text: str
):
    """Nor are the names of gangs that would be over quota, and of fields that are refused."""
    document = copy.deepcopy(dict(sample.database.documents[QUEUE].document))
    document["metadata"]["annotations"] = {text: text}
    document["spec"]["cohortName"] = text
    await sample.store.put_config(document)
    editor = await opened(pages)
    for answer in (
        await pages.get("/ui/config"),
        await pages.get(f"/ui/config?q={text}&kind={text}"),
        await pages.get(PAGE),
        await pages.get("/ui/config/delete?of=clusterqueues/vision"),
        await pages.post(CHECK, data=editor.typed(text_of({**document, text: 1}))),
        await pages.post(CHECK, data=editor.replaced("LowerPriority", "Never")),
        await pages.post(CHECK, data=editor.fields | {"of": text}),
        await pages.get(f"/ui/config/{text}/{text}"),
    ):
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (CHECK, {"of": "clusterqueues/../../x"}, 404),
        (CHECK, {"of": "workloads/x"}, 404),
        (CHECK, {"of": "localqueues/default"}, 404),
        (CHECK, {"version": "seven"}, 422),
        (CHECK, {f"f{number}": "" for number in range(99)}, 400),
        (PAGE, {"do": "delete", "version": '"'}, 422),
        ("/ui/config/localqueues/x", {"do": "apply"}, 404),
        ("/ui/config/clusterqueues/nowhere", {"do": "delete", "version": "1"}, 404),
        ("/ui/config", {}, 405),
    ],
)
async def test_a_strange_form_is_refused_by_a_page(
    pages: httpx2.AsyncClient, path: str, fields: dict[str, str], status: int
):
    answer = await pages.post(path, data=fields)
    assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")


async def test_json_is_not_a_form(pages: httpx2.AsyncClient):
    assert (await pages.post(CHECK, json={"text": ""})).status_code == 415


async def test_an_outage_keeps_the_typed_text(pages: httpx2.AsyncClient, sample: Sample):
    editor = await checked(pages, (await opened(pages)).replaced("LowerPriority", "Never"))
    sample.database.down = True
    answer = await pages.post(CHECK, data=editor.fields)
    assert answer.status_code == 503
    assert "It is unknown whether the change was stored" in answer.text
    assert Editor.of(answer).fields == editor.fields


# -- deleting


async def test_a_deletion_shows_its_consequences_and_needs_a_confirmation(
    pages: httpx2.AsyncClient, sample: Sample
):
    asked = await pages.get("/ui/config/delete?of=clusterqueues/vision")
    assert "LocalQueue team-vision/default: ClusterQueue vision does not exist" in asked.text
    assert "pending in it" in asked.text
    assert QUEUE in sample.database.documents
    fields = {"version": str(sample.database.documents[QUEUE].version), "do": "delete"}
    answer = await pages.post(PAGE, data=fields)
    assert answer.headers["location"] == "/ui/config?done=deleted"
    assert QUEUE not in sample.database.documents
    line = sample.database.audit[-1]
    assert (line.operation, line.status, line.detail) == ("deleteClusterQueue", 303, "deleted")


async def test_an_object_that_was_changed_meanwhile_is_not_deleted(
    pages: httpx2.AsyncClient, sample: Sample
):
    fields = {"version": str(sample.database.documents[QUEUE].version), "do": "delete"}
    await meanwhile(sample)
    answer = await pages.post(PAGE, data=fields)
    assert answer.status_code == 412
    assert "is not deleted yet" in answer.text
    assert QUEUE in sample.database.documents


async def test_a_deletion_without_consequences_shows_none(pages: httpx2.AsyncClient):
    text = (await pages.get("/ui/config/delete?of=cohorts/research")).text
    assert "No other object refers to it" in text


# -- rights

READ = (Right("get", "clusterqueues", "", "vision"), Right("list", "clusterqueues"))
WRITE = Right("update", "clusterqueues", "", "vision")
DELETE = Right("delete", "clusterqueues", "", "vision")


@pytest.mark.parametrize(
    ("rights", "offered"),
    [
        (READ, {"read"}),
        ((*READ, WRITE), {"write"}),
        ((*READ, WRITE, DELETE), {"write", "delete"}),
        ((*READ, DELETE), {"read", "delete"}),
    ],
)
async def test_buttons_need_rights_and_other_requests_are_refused(
    sample: Sample, rights: tuple[Right, ...], offered: set[str]
):
    sent = text_of(sample.database.documents[QUEUE].document).replace("LowerPriority", "Never")
    version = str(sample.database.documents[QUEUE].version)
    async with talking_to(command_service(sample, *rights)) as visitor:
        text = (await visitor.get(PAGE)).text
        fields = {"of": "clusterqueues/vision", "version": version, "text": sent}
        check = await visitor.post(f"{CHECK}?of=clusterqueues/vision", data=fields)
        apply = await visitor.post(PAGE, data={**fields, "do": "apply"})
        delete = await visitor.post(PAGE, data={"version": version, "do": "delete"})
    writes, deletes = "write" in offered, "delete" in offered
    assert ("<textarea" in text) is writes
    assert ("read-only: you may not change it" in text) is not writes
    assert ("/ui/config/delete" in text) is deletes
    assert check.status_code == (200 if writes else 403)
    assert apply.status_code == (409 if writes else 403)  # nothing was checked
    assert delete.status_code == (303 if deletes else 403)
    refused = [line for line in sample.database.audit if line.status == 403][-1:]
    assert all("may not" in line.detail for line in refused if not writes)
    assert (QUEUE in sample.database.documents) is not deletes
    if not deletes:
        assert policy(sample) == "LowerPriority"


@pytest.mark.parametrize(
    "path",
    [PAGE, "/ui/config", "/ui/config/new?kind=clusterqueues", "/ui/config/delete?of=clusterqueues/vision",
     "/ui/config/changes?of=clusterqueues/vision"],
)  # fmt: skip
async def test_the_pages_are_closed_to_others(without_rights: httpx2.AsyncClient, path: str):
    assert (await without_rights.get(path)).status_code == 403


async def test_a_team_sees_the_queues_of_its_namespace_alone(sample: Sample):
    resources = (("list", "localqueues"), ("list", "workloads"), ("update", "localqueues"))
    rights = [Right(*each, "team-vision") for each in resources]
    async with talking_to(command_service(sample, *rights)) as team:
        text = (await team.get("/ui/config")).text
        assert 'href="/ui/config"' in (await team.get("/ui/")).text
        assert (await team.get("/ui/config/new?kind=localqueues")).status_code == 200
    assert "team-vision/default" in text
    assert "New LocalQueue" in text
    assert "team-speech" not in text
    assert "ClusterQueue</h2>" not in text


async def test_the_page_of_a_queue_leads_to_its_configuration(
    pages: httpx2.AsyncClient, without_rights: httpx2.AsyncClient
):
    assert f'href="{PAGE}"' in (await pages.get("/ui/queues/vision")).text
    assert PAGE not in (await without_rights.get("/ui/queues/vision")).text
    assert 'href="/ui/queues/vision"' in (await pages.get(PAGE)).text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": HOST}, 403),
        ({"Origin": HOST, PROOF: "1"}, 303),
        ({"Origin": "https://evil.example", PROOF: "1"}, 403),
        ({"Origin": "null", PROOF: "1"}, 403),
        ({PROOF: "1"}, 403),
    ],
)
async def test_a_session_writes_for_our_own_page_alone(
    sample: Sample, headers: dict[str, str], status: int
):
    app = signed_app(sample.store, people())
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, clock=lambda: NOW)
    version = sample.database.documents[QUEUE].version
    async with asking(app) as browser:
        assert (await browser.post(SESSION_PATH, json={"token": ADMIN})).status_code == 201
        fields = {"version": str(version), "do": "delete"}
        assert (await browser.post(PAGE, data=fields, headers=headers)).status_code == status
    assert (QUEUE in sample.database.documents) is (status == 403)


# -- latest changes


@pytest.mark.parametrize(
    ("method", "path", "body", "logged"),
    [
        ("PUT", "/api/v1/clusterqueues/vision", {"spec": {}}, True),
        ("PUT", "/api/v1/clusterqueues/vision?dry_run=true", {"spec": {}}, False),
        ("PUT", "/api/v1/clusterqueues/vision", {"spec": {"nonsense": 1}}, False),
        ("PUT", "/api/v1/clusterqueues/vision-2", {"spec": {}, "metadata": {"name": "vision-2"}}, False),
    ],
)  # fmt: skip
async def test_changes_are_those_of_this_object_that_took_effect(
    pages: httpx2.AsyncClient, sample: Sample, method: str, path: str, body: Any, logged: bool
):
    sample.database.audit.clear()
    whole = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ClusterQueue",
        "metadata": {"name": "vision"},
    }
    assert (await pages.request(method, path, json={**whole, **body})).status_code < 500
    text = (await pages.get("/ui/config/changes?of=clusterqueues/vision")).text
    assert ("unauthenticated caller" in text) is logged
    recorded = [line.path for line in sample.database.audit]
    assert recorded == ([] if "dry_run" in path else [urlsplit(path).path])
