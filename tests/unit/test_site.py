"""The documentation site builds without a warning, has a page for each file and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import PAGES, README, ROOT

_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^"\s>]+)|<link\b[^>]*rel="?(?:stylesheet|preload)[^>]*href="?(https?:[^"\s>]+)"""
)


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
