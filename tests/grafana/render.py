"""Renders dashboards with the components of Grafana's npm packages in a Chromium.

The page (panels.jsx) is bundled by esbuild. No Grafana server runs: answers.py takes the place of its queries.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Route, ViewportSize, sync_playwright

from tests.support.node import environment, node, node_tool
from tests.web.browser import launching

HERE: Final = Path(__file__).parent
VIEWPORT: Final[ViewportSize] = {"width": 1400, "height": 900}  # pixels
_PAGE: Final = '<!doctype html><link rel="stylesheet" href="panels.css"><body><script src="panels.js"></script>'
_LOADERS: Final = {".woff2": "dataurl", ".woff": "empty", ".ttf": "empty", ".svg": "text"}


class RenderError(Exception):
    """The page cannot be built or shown; the message has the output of esbuild or of the browser."""


def rendered(document: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The uid and the screenshot (PNG) of each dashboard in a document of :class:`tests.grafana.answers.Answers`."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as tools:
        folder = Path(name)
        _bundle(folder)
        browser = tools.chromium.launch(**launching())
        for board in document["boards"]:
            page = browser.new_page(locale="en-US", viewport=VIEWPORT)
            errors: list[PlaywrightError] = []
            page.on("pageerror", partial(_note, errors))
            page.route("**/*", partial(_serve, folder))
            page.goto("http://localhost/")
            if errors:
                raise RenderError("\n".join(map(str, errors)))
            page.evaluate("([document, uid]) => show(document, uid)", [document, board["uid"]])
            shown = page.locator("#board")
            shown.wait_for()
            page.wait_for_timeout(1000)  # the graphs are drawn after their frames
            if errors:
                raise RenderError("\n".join(map(str, errors)))
            yield board["uid"], shown.screenshot()
            page.close()
        browser.close()


def _note(errors: list[PlaywrightError], error: PlaywrightError) -> None:
    errors.append(error)


def _serve(folder: Path, route: Route) -> None:
    """Answers a request of the page with a file of the bundle. Other files do not exist: icons stay empty."""
    path = route.request.url.removeprefix("http://localhost/")
    if not path:
        route.fulfill(content_type="text/html", body=_PAGE)
    elif (folder / path).is_file():
        route.fulfill(path=folder / path)
    else:
        route.fulfill(
            content_type="image/svg+xml", body='<svg xmlns="http://www.w3.org/2000/svg"/>'
        )


def _bundle(folder: Path) -> None:
    packages = node_tool(HERE) / "node_modules"
    done = subprocess.run(
        [
            str(node()),
            str(packages / "esbuild" / "bin" / "esbuild"),
            str(HERE / "panels.jsx"),
            "--bundle",
            f"--outfile={folder / 'panels.js'}",
            '--define:process.env.NODE_ENV="production"',
            *(f"--loader:{suffix}={loader}" for suffix, loader in _LOADERS.items()),
        ],
        env=environment() | {"NODE_PATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RenderError(done.stderr)
