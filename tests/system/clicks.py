"""Actions of users on the dashboard of a real control plane, and checks of the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from playwright.sync_api import Page, expect

from queuectl.domain.commands import Action
from tests.system.dashboard_users import Person
from tests.system.installation import SECONDS, Workspace
from tests.web.browser import scanner

WAIT: Final = 1000 * SECONDS
"""Milliseconds until a missing element of a page is a failure. It is not a performance goal."""


@dataclass(frozen=True)
class Teams:
    """Two teams with 16 GPUs each, users of the first team, and a platform administrator."""

    mine: Workspace
    theirs: Workspace
    submitter: Person
    admin: Person
    platform: Person


def path_of(workspace: Workspace, name: str) -> str:
    """The page of a workload."""
    return f"/ui/workloads/{workspace.workload(name)['uid']}"


def state(page: Page, wanted: str) -> None:
    """Wait until a workload's page shows this state without a reload."""
    expect(page.locator(".head-line .state")).to_contain_text(wanted, timeout=WAIT)


def choose(page: Page, action: Action) -> None:
    """Choose an action of the menu, as soon as it is available."""
    page.locator("#actions > summary").click()
    page.locator(f"button[data-action={action}]:not([aria-disabled])").click()


def press(page: Page, action: Action, **fields: str) -> None:
    """Choose an action and confirm; ``fields``: what is filled in by the names of its fields."""
    choose(page, action)
    for name, value in fields.items():
        given = page.get_by_role("dialog").locator(f"[name={name}]")
        if given.evaluate("field => field.tagName") == "SELECT":
            given.select_option(value)
        else:
            given.fill(value)
    page.get_by_role("dialog").locator("button.go").click()


def retype(page: Page, old: str, new: str) -> None:
    """Change a word of the object that a configuration page shows, check it, and apply it."""
    editor = page.get_by_label("The object as YAML")
    text = editor.input_value()
    assert old in text, text
    editor.fill(text.replace(old, new))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="1 field would change")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("main").get_by_role("status")).to_have_text(
        "The object is changed.", timeout=WAIT
    )


def offered(page: Page) -> set[str]:
    """The actions that a workload's page has buttons for."""
    buttons = page.locator("button[data-action]").all()
    return {str(button.get_attribute("data-action")) for button in buttons}


def asked(page: Page, workspace: Workspace, name: str) -> list[tuple[str, str]]:
    """The commands for a workload and their callers, as the API returns them to the same user."""
    answer = page.request.get(f"/api/v1/namespaces/{workspace.namespace}/workloads/{name}/commands")
    return [(one["action"], one["by"]) for one in answer.json()["items"]]


def start_under_eyes(page: Page, workspace: Workspace, name: str) -> None:
    """Start a gang while the nodes are read again and again: the cache of views is up to a second old."""

    def runs() -> bool:
        assert page.request.get("/api/v1/nodes").ok
        return workspace.state(name) == "Running"

    workspace.gang("Job", name, 2)
    workspace.until(runs, f"{name} Running")


def newest_decision(page: Page) -> str:
    """The page of the latest decision."""
    (newest,) = page.request.get("/api/v1/decisions?limit=1").json()["items"]
    return f"/ui/decisions/{newest['id']}"


def faults(page: Page, paths: list[str]) -> list[tuple[str, str, list[str]]]:
    """Violations that the accessibility scanner finds on pages, live pages after they are connected."""
    axe, violations = scanner(), []
    for path in paths:
        page.goto(path)
        for marker in page.locator("#live").all():
            expect(marker).to_have_text("live", timeout=WAIT)
        expect(page.get_by_text("The solver computes suggested fixes")).to_have_count(
            0, timeout=WAIT
        )
        page.evaluate(axe)  # past the policy on scripts, as only a tool may
        result = page.evaluate("axe.run()")
        violations += [
            (path, v["id"], [node["html"][:160] for node in v["nodes"][:3]])
            for v in result["violations"]
        ]
    return violations
