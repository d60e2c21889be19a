"""The results of the queries of all panels, from a Prometheus, as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import httpx2

from queuectl.domain.quantity import GPU

Json: TypeAlias = Mapping[str, Any]
CHOSEN: Final = {"$cluster_queue": ".*", "$resource": GPU}
RATE_INTERVAL: Final = "20s"


@dataclass(frozen=True)
class Answers:
    """Asks a Prometheus for the time from ``since`` to ``until`` (unix seconds), with a point every ``step`` seconds."""

    url: str
    since: float
    until: float
    step: float = 2.0
    _known: dict[tuple[str, bool], list[Any]] = field(default_factory=dict)

    def document(self, boards: list[Json]) -> dict[str, Any]:
        """The dashboards with the selected variables in place, and the result of each query alongside it.

        Each target has ``result``: Prometheus' vector where it is instant, otherwise its matrix.
        """
        return {
            "since": self.since,
            "until": self.until,
            "step": self.step,
            "boards": [self._board(board) for board in boards],
        }

    def _board(self, board: Json) -> dict[str, Any]:
        panels = [panel | {"title": _chosen(panel["title"])} for panel in board["panels"]]
        return {
            "uid": board["uid"],
            "title": board["title"],
            "panels": [panel | {"targets": list(self._targets(panel))} for panel in panels],
        }

    def _targets(self, panel: Json) -> Iterator[dict[str, Any]]:
        for target in panel.get("targets", []):
            found = self._ask(target["expr"], instant=target["instant"])
            yield target | {"result": found}

    def _ask(self, expr: str, *, instant: bool) -> list[Any]:
        if (expr, instant) not in self._known:
            when = (
                {"time": self.until}
                if instant
                else {"start": self.since, "end": self.until, "step": self.step}
            )
            answer = httpx2.get(
                f"{self.url}/api/v1/{'query' if instant else 'query_range'}",
                params={"query": _chosen(expr), **when},
                trust_env=False,
                timeout=30.0,
            ).json()
            if answer["status"] != "success":
                raise RuntimeError(f"{expr}: {answer['error']}")
            self._known[expr, instant] = answer["data"]["result"]
        return self._known[expr, instant]


def _chosen(text: str) -> str:
    for variable, value in (CHOSEN | {"$__rate_interval": RATE_INTERVAL}).items():
        text = text.replace(variable, value)
    return text
