"""Takes the pictures of the dashboard's pages: ``python -m tests.system.ui_pictures [--minutes N] [FOLDER]``.

``make pictures`` takes them at the end of its run. This module alone makes a shorter run, for work on the pages.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final, Literal

import yaml
from playwright.sync_api import Browser, Page, expect, sync_playwright

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from tests.support.screenshots import IMAGES, save
from tests.system.installation import BLOCK, Installation
from tests.system.picture_run import BACKFILLED, HELD, QUOTAS, RUNNING, Load, stage
from tests.web.browser import launching

WAIT: Final = 60_000
SMALLER: Final = 128  # GPUs of quota, instead of 224, in the picture of a configuration change


def check_quota(page: Page) -> None:
    """Edits the quota of the queue, and selects Check."""
    editor = page.get_by_label("The object as YAML")
    text = editor.input_value()
    old = f"nominalQuota: {QUOTAS['language']}"
    assert old in text, text
    editor.fill(text.replace(old, f"nominalQuota: {SMALLER}", 1))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="1 field would change")).to_be_visible(timeout=WAIT)
    page.evaluate("scrollTo(0, 0)")


def plan(page: Page) -> None:
    """Plans an urgent job, with a node drained."""
    job = m.job("llama-405b-eval", "language", "training", PodSetManifest(8, 8, "64", preferred=BLOCK), priority_class="urgent")  # fmt: skip
    without_aliases = json.loads(json.dumps(job))
    page.locator("[name=manifests]").fill(yaml.safe_dump(without_aliases, sort_keys=False))
    page.locator("[name=drain]").fill("b1-r3-h7")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("heading", name="Summary")).to_be_visible(timeout=WAIT)


def color_by_queue(page: Page) -> None:
    page.locator("input[value=queue] + span").click()


@dataclass(frozen=True)
class Picture:
    """A page in a window of a size. ``prepare``: what to do on the page before the picture is taken; ``whole``: with the part below the window."""

    name: str
    path: str
    width: int = 1280
    height: int = 860
    theme: Literal["light", "dark"] = "light"
    prepare: Callable[[Page], None] = lambda page: None
    whole: bool = False


def both(name: str, path: str, height: int = 860) -> tuple[Picture, Picture]:
    """In the light and in the dark theme."""
    light = Picture(name, path, height=height)
    return light, replace(light, name=f"{name}-dark", theme="dark")


def with_fixes(built: Installation) -> str:
    """The uid of a pending workload for which the solver has found the most fixes; at most eight are explained."""
    pending = [w for w in built.rest.workloads().values() if w["state"] == "Pending"]
    found: list[tuple[int, str]] = []
    for one in pending[:8]:
        explained = built.rest.explain(one["namespace"], one["name"])
        found.append((len(explained["suggestedFixes"]), str(one["uid"])))
    return max(found)[1]


def pictures(built: Installation) -> list[Picture]:
    """All pictures of this run, those of moving contents first."""
    gang = RUNNING[1]
    runs = built.rest.workload(gang.team, gang.name)["uid"]
    mine = f"/ui/mine?user={HELD.user}&namespace={HELD.team}&sort=queuedAt"
    waits = f"/ui/workloads/{with_fixes(built)}"
    return [
        Picture("workload", waits, height=960),
        *both("timeline", f"/ui/timeline?queue={BACKFILLED}&span=6h"),
        *both("budgets", "/ui/budgets", height=600),
        *both("reservations", "/ui/reservations", height=600),
        Picture("overview", "/ui/", whole=True),
        Picture("overview-dark", "/ui/", height=1000, theme="dark"),
        Picture("mine", mine, height=960),
        Picture("phone", "/ui/queues/language", width=390, height=844),
        Picture("cohorts", "/ui/cohorts", whole=True),
        Picture("pods", f"/ui/workloads/{runs}", whole=True),
        Picture("nodes", "/ui/nodes", prepare=color_by_queue),
        Picture("usage", "/ui/usage?by=user&span=24h", height=760),
        Picture("config", "/ui/config/clusterqueues/language", prepare=check_quota, whole=True),
        Picture("whatif", "/ui/whatif", height=1200, prepare=plan),
    ]


def take(browser: Browser, address: str, picture: Picture) -> bytes:
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme=picture.theme,
        base_url=address,
    )
    page = context.new_page()
    page.goto(picture.path)
    for marker in page.locator("#live").all():
        expect(marker).to_have_text("live", timeout=WAIT)
    expect(page.get_by_text("The solver computes suggested fixes")).to_have_count(0, timeout=WAIT)
    picture.prepare(page)
    page.wait_for_timeout(500)  # the node map is drawn after its data
    taken = page.screenshot(full_page=picture.whole)
    context.close()
    return taken


def save_all(built: Installation, folder: Path) -> None:
    """Takes all pictures of a running cluster."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(**launching())
        for picture in pictures(built):
            save(take(browser, built.controller.api, picture), folder / f"ui-{picture.name}.png")
        browser.close()


def main(folder: Path, minutes: float) -> None:
    with stage() as (built, _, exporters), Load(built, exporters, minutes, Random(7)).running():
        time.sleep(60 * minutes)
        save_all(built, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.minutes)
