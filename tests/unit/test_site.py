"""The documentation site builds without a warning, has a page for each file and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from mkdocs.config import load_config

from tests.support.kind_pages import on_config
from tests.support.pages import PAGES, README, ROOT

_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^"\s>]+)|<link\b[^>]*rel="?(?:stylesheet|preload)[^>]*href="?(https?:[^"\s>]+)"""
)
_NAMED: Final = re.compile(r"\b(docs/[a-z-]+/[a-z-]+)\.md(?:#([a-z0-9-]+))?")
MOST_ENTRIES: Final = 13


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A missing page, link or anchor makes the build fail."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def address(page: Path) -> str:
    """The folder of a page in the site."""
    below = page.relative_to(ROOT / "docs")
    return str(below.parent if below.stem == "index" else below.with_suffix(""))


@pytest.mark.parametrize("page", sorted(set(PAGES.values()) - {README}), ids=lambda path: path.stem)
def test_each_page_is_in_the_site_and_can_be_found(site: Path, page: Path) -> None:
    assert (site / address(page) / "index.html").is_file()
    found = {
        entry["location"]
        for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    assert f"{address(page)}/".removeprefix("./") in found


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = {found for page in site.rglob("*.html") for found in _LOADED.findall(page.read_text())}
    assert loaded == set()


def anchors(site: Path, address: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', (site / address / "index.html").read_text()))


def test_each_alert_links_to_its_section_of_the_site(site: Path) -> None:
    rules = (ROOT / "deploy/chart/rules/alerts.yaml").read_text()
    linked = set(re.findall(r"RUNBOOK_URL#(\w+)", rules))
    assert linked
    assert linked - anchors(site, "how-to/runbook") == set()


def test_each_page_that_a_message_or_a_manifest_names_exists(site: Path) -> None:
    files = [p for top in ("queuectl", "deploy") for p in (ROOT / top).rglob("*") if p.is_file()]
    texts = [p.read_text() for p in files if p.suffix in {".py", ".yaml", ".txt", ".html", ".lua"}]
    named = {found for text in texts for found in _NAMED.findall(text)}
    assert len(named) > 20
    for page, anchor in named:
        address = page.removeprefix("docs/")
        assert (site / address / "index.html").is_file(), page
        assert not anchor or anchor in anchors(site, address), f"{page}.md#{anchor}"


def levels(entries: list[Any]) -> Iterator[list[Any]]:
    yield entries
    for entry in entries:
        for below in entry.values() if isinstance(entry, dict) else ():
            if isinstance(below, list):
                yield from levels(below)


def test_no_level_of_the_navigation_is_long() -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    on_config(config)
    assert max(map(len, levels(config["nav"]))) <= MOST_ENTRIES
