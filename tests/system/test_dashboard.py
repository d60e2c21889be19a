"""The dashboard of a real control plane in a real Chromium: signed in by a token of the cluster, everything done by clicking."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.commands import Action
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from tests.system.actions import until_empty, until_reason
from tests.system.clicks import (
    WAIT,
    Teams,
    asked,
    choose,
    faults,
    newest_decision,
    offered,
    path_of,
    press,
    retype,
    start_under_eyes,
    state,
)
from tests.system.dashboard_users import (
    DashboardUsers,
    chromium,
    person,
    secured_installation,
    sign_in,
)
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.browser]
NODES = NodeSpec(racks_per_block=2, hosts_per_rack=2)
WITH_BUTTON = set(Action) - {Action.CHECK}
"""Programs report admission checks, so this command has no button."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with secured_installation(NODES, tmp_path_factory.mktemp("tls")) as built:
        yield built


@pytest.fixture(scope="module")
def settled(secured: Installation) -> Iterator[Teams]:
    """The first team has a LocalQueue ``spare`` of 16 GPUs alongside ``main``."""
    cluster = secured.cluster
    with secured.workspace(16) as mine, secured.workspace(16) as theirs:
        spare = f"{mine.namespace}-spare"
        queue = m.cluster_queue(spare, "gpu", {GPU: 16, "cpu": "1M"})
        secured.rest.apply([queue, m.local_queue(mine.namespace, "spare", spare)])
        yield Teams(
            mine,
            theirs,
            person(cluster, "submitter", "queuectl-submitter", mine.namespace),
            person(cluster, "admin", "queuectl-team-admin", mine.namespace),
            person(cluster, "platform", "queuectl-platform-admin"),
        )


@pytest.fixture(scope="module")
def running_browser(settled: Teams) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def teams(settled: Teams) -> Iterator[Teams]:
    yield settled
    for workspace in (settled.mine, settled.theirs):
        workspace.clear()


@pytest.fixture
def users(running_browser: Browser, secured: Installation) -> Iterator[DashboardUsers]:
    """Their browsers report no errors."""
    made = DashboardUsers(running_browser, secured.controller.api)
    yield made
    for context in running_browser.contexts:
        context.close()
    assert made.errors == []


def test_a_token_opens_the_page_that_was_wanted_and_signing_out_closes_it(
    users: DashboardUsers, teams: Teams
) -> None:
    page = users.signed_out_page()
    page.goto("/ui/queues")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, teams.admin.token)
    page.wait_for_url("**/ui/queues")
    expect(page.get_by_title(f"Signed in as {teams.admin.user}").first).to_be_visible()
    assert page.evaluate("document.cookie") == "", "no script may read the session"

    (kept,) = page.context.cookies()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/signin")
    page.context.add_cookies(
        [{"name": kept["name"], "value": kept["value"], "url": users.address, "secure": True}]
    )
    page.goto("/ui/queues")
    page.wait_for_url("**/ui/signin?next=*")  # the session has ended, also for a copy of its cookie


def links_of(page: Page, navigation: str | re.Pattern[str]) -> list[str]:
    links = page.get_by_role("navigation", name=navigation).get_by_role("link").all()
    return [str(link.get_attribute("href")) for link in links]


@pytest.mark.parametrize("who", ["admin", "platform"])
def test_every_page_opens_without_errors_and_is_accessible(
    users: DashboardUsers, teams: Teams, who: str
) -> None:
    """The fixture counts errors when the browsers close, violations of the content security policy too."""
    workspace = teams.mine
    workspace.job("runs", PodSetManifest(2, gpus=8))
    workspace.until_state("runs", "Running")
    workspace.job("waits", PodSetManifest(2, gpus=8))
    workspace.until_state("waits", "Pending")
    page = users.visit(getattr(teams, who))
    paths = []
    for group in links_of(page, "Groups of pages"):
        page.goto(group)
        paths += links_of(page, re.compile("^Pages of "))
    assert ("/ui/nodes" in paths) is (who == "platform")
    paths += [
        f"/ui/queues/{workspace.namespace}",
        path_of(workspace, "runs"),
        path_of(workspace, "waits"),
        *(["/ui/nodes?q=rack", newest_decision(page)] if who == "platform" else []),
    ]
    assert faults(page, paths) == []


def test_a_gang_submitted_meanwhile_appears_and_starts_without_a_reload(
    users: DashboardUsers, teams: Teams
) -> None:
    workspace = teams.mine
    paths = ("/ui/workloads", f"/ui/queues/{workspace.namespace}", "/ui/nodes?q=late")
    first = users.visit(teams.platform, paths[0])
    pages = [first, *(first.context.new_page() for _ in paths[1:])]
    for page, path in zip(pages, paths, strict=True):
        page.goto(path)
        expect(page.locator("#live")).to_have_text("live", timeout=WAIT)
        page.evaluate("window.opened = 'once'")
    workspace.gang("PyTorchJob", "late", 2)
    for page in pages:
        row = page.get_by_role("row").filter(has_text=f"{workspace.namespace}/late")
        expect(row.first).to_be_visible(timeout=WAIT)
        assert page.evaluate("window.opened") == "once"
    expect(first.get_by_role("row").filter(has_text="late")).to_contain_text(
        "Running", timeout=WAIT
    )


@pytest.mark.parametrize(
    ("action", "becomes", "back"),
    [(Action.HOLD, "Held", Action.RELEASE), (Action.DEACTIVATE, "Deactivated", Action.ACTIVATE)],
)
def test_a_gang_is_held_and_released_by_clicking(
    users: DashboardUsers, teams: Teams, action: Action, becomes: str, back: Action
) -> None:
    workspace = teams.mine
    workspace.gang("PyTorchJob", "train", 2)
    workspace.until_state("train", "Running")
    page = users.visit(teams.submitter, path_of(workspace, "train"))
    press(page, action, why="the data is wrong")
    state(page, becomes)
    until_empty(workspace, "train")
    press(page, back)
    state(page, "Running")
    assert len(workspace.running("train")) == 2
    assert asked(page, workspace, "train") == [
        (action, teams.submitter.user),
        (back, teams.submitter.user),
    ]
    expect(page.locator("ol.life")).to_contain_text("the data is wrong")


def test_a_running_and_a_pending_gang_are_held_by_one_command_for_a_selection(
    users: DashboardUsers, teams: Teams
) -> None:
    workspace = teams.mine
    for name, becomes in (("runs", "Running"), ("waits", "Pending")):
        workspace.gang("Job", name, 2)
        workspace.until_state(name, becomes)
    page = users.visit(teams.submitter, f"/ui/workloads?namespace={workspace.namespace}")
    page.get_by_label("Select all on this page").check()
    page.locator("#bulk-action").select_option("hold")
    page.get_by_role("button", name="Continue").click()
    dialog = page.get_by_role("dialog")
    status = dialog.get_by_role("status")
    expect(status).to_contain_text("1 gang with 2 pods is evicted", timeout=WAIT)
    expect(status).to_contain_text("of work would be lost", timeout=WAIT)
    dialog.get_by_role("button", name="Hold").click()
    expect(status).to_have_text("2 done", timeout=WAIT)
    for name in ("runs", "waits"):
        workspace.until_state(name, "Held")


def test_a_gang_is_requeued_by_clicking(users: DashboardUsers, teams: Teams) -> None:
    workspace = teams.mine
    workspace.gang("Job", "again", 2)
    workspace.until_state("again", "Running")
    before = {pod.uid for pod in workspace.pods("again")}
    page = users.visit(teams.submitter, path_of(workspace, "again"))
    press(page, Action.REQUEUE)
    expect(page.locator("ol.life")).to_contain_text("start 2", timeout=WAIT)
    workspace.until(lambda: len(workspace.running("again")) == 2, "it runs again")
    assert not before & {pod.uid for pod in workspace.running("again")}


def test_a_pending_gang_is_first_when_its_priority_is_set(
    users: DashboardUsers, teams: Teams
) -> None:
    workspace = teams.mine
    workspace.gang("Job", "runs", 2)
    workspace.until_state("runs", "Running")
    workspace.gang("PyTorchJob", "urgent", 2)
    workspace.until_state("urgent", "Pending")
    page = users.visit(teams.admin, path_of(workspace, "urgent"))
    press(page, Action.PRIORITY, priority="500", until="2041-05-05T12:00", why="a deadline")
    state(page, "Running")
    answer = page.request.get(f"/api/v1/namespaces/{workspace.namespace}/workloads/urgent/commands")
    assert answer.json()["items"][0]["until"].startswith("2041-05-05T")
    assert workspace.workload("urgent")["priority"] == 500
    assert len(workspace.running("urgent")) == 2
    assert workspace.state("runs") == "Pending"


def test_a_preemption_shows_its_cost_and_starts_the_next_gang(
    users: DashboardUsers, teams: Teams
) -> None:
    workspace = teams.mine
    page = users.visit(teams.admin)
    start_under_eyes(users.visit(teams.platform), workspace, "leaves")
    page.goto(path_of(workspace, "leaves"))
    dialog = page.get_by_role("dialog")
    with page.expect_response("**/preempt?dry_run=true") as answer:
        choose(page, Action.PREEMPT)
    assert answer.value.json()["lostGpuSeconds"] > 0, "the answer has the cost"
    expect(dialog).to_contain_text("GPU-hours of work would be lost")
    dialog.get_by_role("button", name="Cancel").click()
    assert asked(page, workspace, "leaves") == [], "the preview issues no command"

    workspace.gang("Job", "next", 2)
    workspace.until_state("next", "Pending")
    press(page, Action.PREEMPT)
    workspace.until_state("next", "Running")
    assert len(workspace.running("next")) == 2
    state(page, "Pending")
    page.goto("/ui/evictions")
    expect(page.get_by_role("row").filter(has_text=f"{workspace.namespace}/leaves")).to_be_visible()


def test_a_gang_moves_to_another_queue_by_clicking(users: DashboardUsers, teams: Teams) -> None:
    workspace = teams.mine
    workspace.gang("Job", "runs", 2)
    workspace.until_state("runs", "Running")
    workspace.gang("Job", "moves", 2)
    workspace.until_state("moves", "Pending")
    page = users.visit(teams.submitter, path_of(workspace, "moves"))
    press(page, Action.MOVE, queue="spare")
    state(page, "Running")
    assert workspace.workload("moves")["queue"] == "spare"
    assert workspace.state("runs") == "Running"


def test_a_tenant_sees_no_name_of_another_team_and_no_button_without_the_right(
    users: DashboardUsers, teams: Teams
) -> None:
    mine, theirs = teams.mine, teams.theirs
    for workspace, name in ((mine, "open"), (theirs, "secret")):
        workspace.gang("Job", name, 2)
        workspace.until_state(name, "Running")
    own, other = path_of(mine, "open"), path_of(theirs, "secret")
    page = users.visit(teams.submitter)
    links = page.get_by_label("Pages", exact=True).get_by_role("link").all()
    for path in [str(link.get_attribute("href")) for link in links]:
        page.goto(path)
        text = page.content()
        assert theirs.namespace not in text, path
        assert "secret" not in text, path
    for path in (other, f"/ui/queues/{theirs.namespace}", "/ui/nodes", "/ui/whatif"):
        assert page.request.get(path).status in (403, 404), path

    page.goto(own)
    assert offered(page) == WITH_BUTTON - {Action.PRIORITY, Action.PREEMPT}
    above = users.visit(teams.admin, own)
    assert offered(above) == WITH_BUTTON
    assert above.request.get(other).status == 404
    everywhere = users.visit(teams.platform, other)
    assert offered(everywhere) == WITH_BUTTON


def test_a_request_without_the_right_of_its_button_is_refused(
    users: DashboardUsers, teams: Teams
) -> None:
    teams.mine.gang("Job", "stays", 2)
    teams.mine.until_state("stays", "Running")
    uid = teams.mine.workload("stays")["uid"]
    page = users.visit(teams.submitter)
    proof = {"X-Queuectl-Session": "1", "Origin": users.address}
    address = f"/api/v1/workloads/{uid}/preempt"
    assert page.request.post(address, headers=proof, data={}).status == 403
    assert asked(page, teams.mine, "stays") == []


def test_what_if_is_answered_from_the_cluster_and_changes_nothing(
    users: DashboardUsers, teams: Teams
) -> None:
    workspace = teams.mine
    page = users.visit(teams.platform, "/ui/whatif")
    start_under_eyes(page, workspace, "runs")
    nodes = {str(pod.node) for pod in workspace.running("runs")}
    page.get_by_label("Nodes to drain").fill(", ".join(nodes))
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("#answer table").first).to_be_visible(timeout=WAIT)
    expect(page.locator("#answer")).to_contain_text(f"{workspace.namespace}/runs")

    page.get_by_label("Nodes to drain").fill("")
    job = m.job("tried", workspace.namespace, "main", PodSetManifest(9, gpus=8))
    page.get_by_label("Manifests: jobs to submit").fill(json.dumps(job))
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("#answer")).to_contain_text(f"{workspace.namespace}/tried", timeout=WAIT)
    assert {str(pod.node) for pod in workspace.running("runs")} == nodes
    assert workspace.workload("tried") == {}


def test_a_quota_raised_on_its_page_starts_the_pending_gang(
    users: DashboardUsers, teams: Teams
) -> None:
    """Then it is lowered again. A team's admin has no access to ClusterQueues."""
    workspace = teams.mine
    path = f"/ui/config/clusterqueues/{workspace.namespace}-spare"
    workspace.job("wide", PodSetManifest(3, gpus=8), queue="spare")
    until_reason(workspace, "wide", "Pending", "ExceedsMaxQuota")
    refused = users.visit(teams.admin)
    answer = refused.request.get(path)
    assert answer.status == 403

    page = users.visit(teams.platform, path)
    retype(page, "nominalQuota: 16", "nominalQuota: 24")
    expect(page.locator(".life")).to_contain_text(teams.platform.user)
    workspace.until_state("wide", "Running")
    retype(page, "nominalQuota: 24", "nominalQuota: 16")
    assert workspace.state("wide") == "Running", "a running gang is not evicted"
    assert faults(page, ["/ui/config", path]) == []
