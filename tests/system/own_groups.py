"""A plugin of pytest for ``make test-system``, alongside :mod:`tests.system.groups`: each worker collects and runs its own groups.

Workers of pytest-xdist all collect all tests, which takes eight seconds of CPU time each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.longest import OwnTests
from tests.system.groups import group_of

SECONDS: Final[Mapping[str, int]] = {
    "system/test_idle_reclaim": 250,
    "cluster/test_kubernetes": 250,
    "system/test_queues": 250,
    "cluster/test_localcluster_run": 250,
}
"""The time of the long groups, by their first files. Each worker gets one of them."""
ELSEWHERE: Final = {"docs"}
"""Folders of which other targets run all tests. They are not collected."""
_SPENT: Final[defaultdict[str, defaultdict[str, float]]] = defaultdict(lambda: defaultdict(float))
"""The seconds of each file, by the name of the worker."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OwnTests:
    return OwnTests(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    config = session.config
    worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        config.args = shares(config.args, worker["workercount"])[number]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    node = getattr(report, "node", None)
    if node is not None:
        _SPENT[node.gateway.id][report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the time of each worker and its files, by which groups are made equal."""
    for worker, files in sorted(_SPENT.items()):
        ordered = sorted(files.items(), key=lambda one: one[1], reverse=True)
        longest = ", ".join(f"{Path(file).stem} {spent:.0f}" for file, spent in ordered)
        terminalreporter.write_line(f"{worker}: {sum(files.values()):.0f} s: {longest}")


def shares(arguments: Iterable[str], workers: int) -> list[list[str]]:
    """Share out the files of these arguments of pytest. Tests of one group stay together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for argument in arguments:
        path = Path(argument.partition("::")[0])
        if path.is_dir():
            for file in sorted(path.rglob("test_*.py")):
                if ELSEWHERE.isdisjoint(file.parts):
                    groups[group_of(str(file))].append(str(file))
        else:
            groups[group_of(str(path))].append(argument)
    times = {group: sum(_seconds(each) for each in files) for group, files in groups.items()}
    loads = [0] * workers
    own: list[list[str]] = [[] for _ in loads]
    for group in sorted(groups, key=lambda one: times[one], reverse=True):
        least = loads.index(min(loads))
        loads[least] += times[group]
        own[least] += groups[group]
    return own


def _seconds(argument: str) -> int:
    file = "/".join(Path(argument.partition("::")[0]).with_suffix("").parts[-2:])
    return SECONDS.get(file, 1)
