"""Label and field selectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.errors import BadInput
from queuectl.domain.selectors import field_selector, label_selector, matches
from queuectl.visibility.objects import FIELDS

LABELS = {"app": "a", "example.com/tier": "gold", "empty": ""}


def test_label_selectors_mean_what_kubectl_means():
    table = {
        "": True,
        " ": True,
        "app=a": True,
        "app==a": True,
        " app = a , empty": True,
        "app!=a": False,
        "missing!=a": True,
        "app in (a, b)": True,
        "app notin (b)": True,
        "app notin (a,b)": False,
        "missing notin (a)": True,
        "missing in (a)": False,
        "empty=": True,
        "empty in (,x)": True,
        "example.com/tier in (gold),app": True,
        "!missing": True,
        "! app": False,
        "example.com/tier": True,
    }
    assert {text: matches(label_selector(text), LABELS) for text in table} == table


def test_field_selectors_know_few_fields():
    fields = {"status.state": "Pending", "spec.queue": "main", "metadata.name": "job-a,b"}
    table = {
        "": True,
        "status.state=Pending": True,
        "status.state==Pending,spec.queue=main": True,
        "status.state!=Pending": False,
        "metadata.name=job-a\\,b": True,
    }
    assert {text: matches(field_selector(text, FIELDS), fields) for text in table} == table


def test_malformed_and_long_selectors_are_refused():
    labels = ["=a", "app=a b", "app in a", "app in (a", "app in (a))", "a,,b", "app > 1", "ä=1"]
    labels += ["x" * 100_000, ",".join(["app"] * 300), "(" * 1000, "app in (" + "(" * 10]
    fields = ["a", "status.color=red", "status.state=a=b", "=a", "status.state=a,", "\\" * 50]
    fields += ["status.state=" + "x" * 300, "metadata.name=" + "x," * 50_000]
    read = []
    for text in labels:
        with suppress(BadInput):
            read.append((text[:50], label_selector(text)))
    for text in fields:
        with suppress(BadInput):
            read.append((text[:50], field_selector(text, FIELDS)))
    assert read == []


HOSTILE = [
    *("{}(", "{}!", "!{}", "!{}(", "a{}", "a{}(", "a{}b", "a{}=", "a{}=({}", "a={}", "a={}!"),
    *("{}a{}=={}b{}(", "a={}b(", "a in{}", "a{}in{}(", "a in{}({}", "a in ({})!", "a in ({},{})b"),
]
"""Texts that a parser can read again and again, with the repeated part as braces."""


def seconds_of(read: Callable[[str], object], text: str) -> float:
    """Of the processor, without interruptions by others: the fastest of several runs."""
    taken = []
    for _ in range(5):
        began = time.thread_time()
        with suppress(BadInput):
            read(text)
        taken.append(time.thread_time() - began)
    return min(taken)


@pytest.mark.parametrize("repeated", [" ", "\t", "a", "a-", "=", "!", "a ", "\\"])
@pytest.mark.parametrize("text", HOSTILE)
def test_the_time_to_read_a_selector_grows_with_its_length(text: str, repeated: str):
    def hostile(length: int) -> str:
        return text.replace("{}", repeated * (length // len(repeated) // text.count("{}")))

    for read in (label_selector, partial(field_selector, fields=FIELDS)):
        short, long = (seconds_of(read, hostile(length)) for length in (1_000, 16_000))
        assert long < 64 * short  # 16 times as long: 256 times the time would be quadratic


@given(st.text(alphabet="ab=!(), in\\.", max_size=40))
def test_a_selector_is_read_or_refused(text: str):
    for read in (label_selector, partial(field_selector, fields=FIELDS)):
        try:
            matches(read(text), LABELS)
        except BadInput:
            continue
