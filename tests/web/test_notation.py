"""Numbers, units and times have one notation on all pages."""

from __future__ import annotations

import re
from fractions import Fraction
from html.parser import HTMLParser

import httpx2

from queuectl.domain.accounting import HOUR, UNITS
from queuectl.web import words
from tests.web.test_pages import PAGES

THIN, MINUS = "\u202f", "\u2212"
REFUSED = {
    "a time of RFC 3339": re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}"),
    "seconds of a clock": re.compile(r"\d{2}:\d{2}:\d{2}"),
    "five digits without a space": re.compile(r"(?<![\w./-])\d{5,}(?![\w./-])"),
    "a comma between thousands": re.compile(r"\d,\d{3}(?!\d)"),
    "three digits after the point": re.compile(r"(?<![\w.-])\d+\.\d{3,}(?![\w.-])"),
    "a space before a percent sign": re.compile(r"\d\s%"),
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


def test_the_notation_of_numbers():
    cases: list[tuple[str, str]] = [
        (words.number(0), "0"),
        (words.number(2176), f"2{THIN}176"),
        (words.number(-1234567.25), f"{MINUS}1{THIN}234{THIN}567.2"),
        (words.number(-0.04), "0"),
        (words.gpus(Fraction(1, 7)), "0.14"),
        (words.gpus(Fraction(1, 1000)), "<0.01"),
        (words.gpus(15.9), "15.9"),
        (words.gpus(100), "100"),
        (words.gpus(5000), f"5{THIN}000"),
        (words.money(12345.5), f"12{THIN}345.50"),
        (words.money(-0.001), "0.00"),
        (words.gpu_hours(0), "0.0"),
        (words.gpu_hours(512 * HOUR * UNITS), "512.0"),
        (words.gpu_hours(-18777 * HOUR * UNITS // 10), f"{MINUS}1{THIN}877.7"),
        (words.as_hours(179), "<0.1"),
        (words.as_hours(5400), "1.5"),
        (words.percent(0.9), "90%"),
        (words.percent(1, 1000), "<1%"),
        (words.percent(1879, 1), f"187{THIN}900%"),
        (words.percent(3, 0), "-"),
        (words.counted(1, "pod"), "1 pod"),
        (words.counted(100_000, "job"), f"100{THIN}000 jobs"),
        (words.counted_gpus(Fraction(1)), "1 GPU"),
        (words.counted_gpus(0.999), "1 GPU"),
        (words.change(112, 100), "▲ 12% more"),
        (words.change(92, 100), "▼ 8% less"),
        (words.change(0, 100), "▼ 100% less"),
        (words.change(100.2, 100), "= the same"),
        (words.change(1000, 100), "▲ 10 times as much"),
        (words.change(1, 0), "new"),
        (words.change(0, 0), "-"),
    ]
    assert [shown for shown, _ in cases] == [expected for _, expected in cases]


def test_the_notation_of_times():
    cases: list[tuple[str, str]] = [
        (words.relative(-300), "5 min ago"),
        (words.relative(360), "in 6 min"),
        (words.relative(0.4), "now"),
        (words.duration(273_600), "3 d 4 h"),
        (words.moment(1_795_000_000), "2026-11-18 11:06:40 UTC"),
        (words.calendar(1_795_000_000), "2026-11-18 11:06 UTC"),
        (words.day(1_795_000_000), "2026-11-18"),
        (words.moment(1e300), "9999-12-31 23:59:59 UTC"),
        (words.moment(-1e300), "1000-01-01 00:00:00 UTC"),
    ]
    assert [shown for shown, _ in cases] == [expected for _, expected in cases]
    assert words.seconds_of("2026-11-18T11:06:40Z") == 1_795_000_000
    assert [words.seconds_of(text) for text in ("", None, "today", "2026-13-01T00:00:00Z")] == [
        None
    ] * 4


def test_a_wrong_notation_is_refused():
    for text in ("2026-11-18T11:06", "11:06:40", "12345", "12,345", "0.123", "45 %", "-3"):
        assert refused(f"<td>{text}</td>"), text
    for text in (
        f"12{THIN}345.50",
        "45%",
        f"{MINUS}3",
        "run-12345",
        "10.0.0.1234",
        "u/12345",
        "v1.234-x",
    ):
        assert not refused(f"<td>{text}</td>"), text
    assert not refused("<pre>2026-11-18T11:06:40Z 12345</pre>")
