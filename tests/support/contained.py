"""The units that processes of queuectl have set aside, and processes that ended: each one is a defect."""

from __future__ import annotations

import json
import re
from collections import Counter

import httpx2

from queuectl.demo.controller import Controller
from queuectl.localcluster.client import get_plain

EVENT = "unit_set_aside"
_COUNT = re.compile(r'^queuectl_contained_errors_total{boundary="(\w+)"} (\S+)', re.MULTILINE)


def contained(controller: Controller) -> list[str]:
    """A line for each place and boundary: from the log, which includes the runs that have ended, and from the metrics of the last run."""
    found: Counter[str] = Counter()
    units: dict[str, str] = {}
    for line in controller.log.read_text(errors="replace").splitlines():
        if EVENT not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:  # the process was killed within the line
            continue
        if event.get("event") == EVENT:
            at = f"{event['boundary']}: {event['place']}"
            found[at] += 1
            units.setdefault(at, event["unit"])
    lines = [f"set aside {n} times at {at}, first {units[at]}" for at, n in found.items()]
    if not lines:
        counts = {b: float(n) for b, n in _COUNT.findall(metrics_of(controller)) if float(n)}
        lines = [f"set aside {n:.0f} units at {boundary}" for boundary, n in counts.items()]
    return lines


def ended(controller: Controller) -> list[str]:
    """A line if the process has ended by itself."""
    code = controller.ended
    return [] if code is None else [f"{controller.home.name} ended with exit code {code}"]


def metrics_of(controller: Controller) -> str:
    """The metrics of a process; empty if it does not answer."""
    try:
        return get_plain(f"{controller.metrics}/metrics", timeout=10.0).text
    except httpx2.HTTPError:
        return ""
