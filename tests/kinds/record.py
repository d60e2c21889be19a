"""A plugin of pytest for ``make test-kinds``: writes the results of the matrix to docs/reference/kinds.md.

The results of a kind are kept from its last whole run, with date and commit.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kinds.entries import ENTRIES
from tests.kinds.entry import FEATURES, Entry
from tests.support.pages import PAGES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "kinds.md"
RESULTS: Final = Path(__file__).with_name("results.json")
_INTRODUCTION: Final = """# Job kinds

For submitters and platform administrators: each kind that queuectl manages, and what is tested with its real controller. `make test-kinds`
runs a system test for each cell on a [local control plane](../explanation/kwok-and-kubelets.md), and writes this page.

"""
_OTHERS: Final = """An `array` is an [Indexed Job whose indexes start one by one](../how-to/arrays.md). Each pod of an array or a Deployment is a gang, and each
group of a LeaderWorkerSet. A PodGroup is a [group of pods](../how-to/pods.md).

## Other tests

`make test-kinds` also tests what only one kind has, what its users can change, and `queuectl hold`. The examples of Kueue
for these kinds run unchanged. More tests cover [RayServices](../how-to/rayservice.md), of which each RayCluster is a gang, and [custom job
kinds](../how-to/bring-your-own-kind.md).

`make test` runs the life cycle of a Job, a PyTorchJob, a PodGroup and a StatefulSet.

The drivers of SparkApplications run Spark itself, as a process of the test, and create the executors. The operator runs without its
webhook.
"""
_outcomes: Final[dict[str, dict[str, str]]] = defaultdict(dict)


def cells() -> dict[str, set[str]]:
    """The features of each kind that have a test."""
    return {one.kind: {*FEATURES} - {*one.without} for one in ENTRIES}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kind", default="", help="run only the tests of this kind")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--kind``, deselect the tests of other kinds, and those without a kind."""
    kind = config.getoption("--kind")
    if kind:
        kept = [item for item in items if kind_of(item) == kind]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def kind_of(item: pytest.Item) -> str:
    """The kind of a test; "" for a test that is not of one kind."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    value = params.get("entry", params.get("kind", ""))
    return value.kind if isinstance(value, Entry) else str(value)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "test_matrix.py" not in report.nodeid:
        return
    kind, _, feature = report.nodeid.rpartition("[")[2].rstrip("]").rpartition("-")
    if report.when == "call" or not report.passed:
        _outcomes[kind][feature] = report.outcome


def pytest_sessionfinish() -> None:
    """Keep the results of each kind of which each cell ran."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    run = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit()}
    for kind, features in cells().items():
        if {*_outcomes[kind]} == features:
            results[kind] = {**run, "cells": dict(sorted(_outcomes[kind].items()))}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(results))


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def page(results: Mapping[str, Any]) -> str:
    """The page with these results."""
    header = ["kind", *FEATURES, "last run"]
    lines = [_row(header), _row(["---"] * len(header))]
    reasons: list[str] = []
    for entry in ENTRIES:
        run = results.get(entry.kind, {})
        found = [_cell(entry.without.get(one), run, one, reasons) for one in FEATURES]
        at = f"{run['date']}, `{run['commit']}`" if run else "not yet"
        lines.append(_row([_linked(entry.kind), *found, at]))
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    meaning = [f"| {name} | {text} |" for name, text in FEATURES.items()]
    return "\n".join(
        [
            _INTRODUCTION + "\n".join(lines),
            "",
            "A number stands for a feature that has no test, for this reason:",
            "",
            *notes,
            "",
            "| feature | meaning |",
            "| --- | --- |",
            *meaning,
            "",
            _OTHERS,
        ]
    )


def _linked(kind: str) -> str:
    """The name, with a link to the page of this name, if there is one."""
    page = PAGES.get(f"{kind.lower()}.md")
    return f"[`{kind}`](../how-to/{page.name})" if page is not None else f"`{kind}`"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(reason: str | None, run: Mapping[str, Any], feature: str, reasons: list[str]) -> str:
    if reason is not None:
        if reason not in reasons:
            reasons.append(reason)
        return f"no ({reasons.index(reason) + 1})"
    outcome = run.get("cells", {}).get(feature, "not run")
    return {"passed": "yes"}.get(outcome, str(outcome))
