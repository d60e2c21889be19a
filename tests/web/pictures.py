"""Draws the pictures of docs/how-to/dashboard.md over the large sample: ``python -m tests.web.pictures``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser

from tests.web.browser import running, served
from tests.web.sample import LARGE, make
from tests.web.serve_sample import dashboard

FOLDER = Path(__file__).parents[2] / "docs" / "images"


@dataclass(frozen=True)
class Picture:
    """``chosen``: the colors of the node map; ``retyped``: the text to replace in an object before the check, and its replacement."""

    name: str
    path: str
    width: int = 1280
    height: int = 860
    theme: Literal["light", "dark"] = "light"
    chosen: str = ""
    retyped: tuple[str, str] | None = None


PICTURES = (
    Picture("overview", "/ui/"),
    Picture("mine", "/ui/mine?user=ann&namespace=team-speech", height=760),
    Picture("nodes", "/ui/nodes", chosen="queue"),
    Picture("usage", "/ui/usage?by=user&span=168h"),
    Picture("config", "/ui/config/clusterqueues/language", retyped=("18000", "6000")),
    Picture("workload", "/ui/workloads/wait-00000", height=760, theme="dark"),
    Picture("phone", "/ui/queues/language", width=390, height=844),
)


async def draw(browser: Browser, address: str, picture: Picture) -> None:
    context = await browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme=picture.theme,
        base_url=address,
    )
    page = await context.new_page()
    await page.goto(picture.path)
    await page.wait_for_timeout(1500)
    if picture.chosen:
        await page.locator(f"input[value={picture.chosen}] + span").click()
        await page.wait_for_timeout(500)
    if picture.retyped:
        editor = page.get_by_label("The object as YAML")
        await editor.fill((await editor.input_value()).replace(*picture.retyped))
        await page.get_by_role("button", name="Check").click()
        await page.wait_for_timeout(1500)
    await page.screenshot(path=FOLDER / f"ui-{picture.name}.png")
    await context.close()


async def main() -> None:
    async with running() as browser, served(dashboard(make(LARGE))) as address:
        for picture in PICTURES:
            await draw(browser, address, picture)


if __name__ == "__main__":
    asyncio.run(main())
