"""The text of logs: what a container writes becomes printable text with lines of a bounded length, however its bytes arrive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.log_text import LONGEST_LINE, LogText, PageText
from queuectl.domain.pacing import ByteRate
from queuectl.domain.words import has_controls
from queuectl.objects.kubernetes.containers import containers_of

BYTES = st.lists(
    st.sampled_from([b"\x1b[31m", b"\x1b[", b"\x1b", b"0;", b"m", b"\r", b"\n", b"\0", b"\xe2\x80", b"\xae", b"\xff", b"text", b"x" * LONGEST_LINE])
    | st.binary(max_size=5),
    max_size=30,
).map(b"".join)  # fmt: skip


def divided(written: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(written) + 1) for place in places} | {len(written)})
    return [written[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(BYTES, st.lists(st.integers(0, 10**6), max_size=8))
def test_text_is_printable_and_divided_alike_however_its_bytes_arrive(
    written: bytes, places: Sequence[int]
) -> None:
    for kind in (LogText, PageText):
        whole, parts = kind(), kind()
        expected = whole.add(written) + whole.end()
        assert "".join([*map(parts.add, divided(written, places)), parts.end()]) == expected
    assert not has_controls(expected)
    assert max(map(len, expected.split("\n"))) <= LONGEST_LINE


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"one\ntwo", "one\ntwo"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"),
        (b"10 %\r20 %\r\n", "10 %\n20 %\n"),
        (b"\0\x7f\x80\xff", "\\u0000\\u007f\ufffd\ufffd"),
        ("\u202etxt.exe\u2028\u2066".encode(), "\\u202etxt.exe\\u2028\\u2066"),
        (b"\xe2\x80", "\ufffd"),
        (b"<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        (b"x" * (LONGEST_LINE + 1), "x" * LONGEST_LINE + "\nx"),
        (b"x" * LONGEST_LINE + b"\n", "x" * LONGEST_LINE + "\n"),
    ],
)
def test_text_of_a_page(written: bytes, expected: str) -> None:
    text = PageText()
    assert text.add(written) + text.end() == expected


def test_parts_wait_for_the_rate_that_they_share() -> None:
    now = 0.0
    rate = ByteRate(10.0, 100.0, lambda: now)
    assert [rate.passed(60), rate.passed(60), rate.passed(60)] == [0.0, 2.0, 8.0]
    now = 100.0
    assert rate.passed(100) == 0.0


def test_containers_of_any_document() -> None:
    default = {"kubectl.kubernetes.io/default-container": "side"}
    ended = {"terminated": {"exitCode": 1}}
    pod = {
        "metadata": {"uid": "u", "annotations": default},
        "spec": {"containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "init"}], "ephemeralContainers": [{"name": "debug"}]},
        "status": {"containerStatuses": [{"name": "main", "lastState": ended}, {"name": "side", "lastState": {}}]},
    }  # fmt: skip
    found = containers_of(pod)
    assert (found.uid, found.default) == ("u", "side")
    assert found.names == ("main", "side", "init", "debug")
    assert found.restarted == {"main"}
    for wrong in (
        {},
        {"metadata": [], "spec": 3, "status": "x"},
        {"metadata": {"uid": 7, "annotations": [default]}, "spec": {"containers": {"name": "x"}}},
        {"spec": {"containers": [None, [], {"name": None}, {}]}, "status": {"containerStatuses": [{"name": "x", "lastState": [1]}]}},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": ["side"]}}},
    ):  # fmt: skip
        empty = containers_of(wrong)
        assert (empty.uid, empty.names, empty.default, empty.restarted) == (
            "",
            (),
            None,
            frozenset(),
        )
