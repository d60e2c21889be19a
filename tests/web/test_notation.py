"""Numbers, units and times have one notation on all pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx2

from tests.web.test_pages import PAGES

THIN = "\u202f"
REFUSED = {
    "a time of RFC 3339": re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}"),
    "seconds of a clock": re.compile(r"\d{2}:\d{2}:\d{2}"),
    "five digits without a space": re.compile(r"(?<![\w./-])\d{5,}(?![\w./-])"),
    "a comma between thousands": re.compile(r"\d,\d{3}(?!\d)"),
    "three digits after the point": re.compile(r"(?<![\w.-])\d+\.\d{3,}(?![\w.-])"),
    "a percent sign without a space": re.compile(r"\d%"),
    "a hyphen for a minus": re.compile(r"^-\d"),
}
"""Notations that no visible text of a page has, by their names."""
VERBATIM = ("script", "style", "textarea", "pre", "code", "option")
"""Elements whose text is not ours: scripts, documents of users, and names."""


class VisibleText(HTMLParser):
    """The texts that a page shows, without those of :data:`VERBATIM`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._verbatim = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._verbatim += tag in VERBATIM

    def handle_endtag(self, tag: str) -> None:
        self._verbatim -= tag in VERBATIM

    def handle_data(self, data: str) -> None:
        if not self._verbatim and data.strip():
            self.texts.append(data.strip())


def refused(page: str) -> list[tuple[str, str]]:
    """Each text of a page in another notation, with the name of the notation."""
    texts = VisibleText(page).texts
    return [(name, t) for t in texts for name, wrong in REFUSED.items() if wrong.search(t)]


async def test_all_pages_have_one_notation(pages: httpx2.AsyncClient):
    wrong = {path: refused((await pages.get(path)).text) for path in PAGES}
    assert {path: texts for path, texts in wrong.items() if texts} == {}
