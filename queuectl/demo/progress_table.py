"""The live table: what queuectl says of each gang, beside where the API server shows its pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queuectl.demo.replay import place_of
from queuectl.demo.scenario import GPUS, Gang
from queuectl.domain.fleet import Node
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
from queuectl.domain.records import PodRecord
from queuectl.domain.utilization import UseState
from queuectl.localcluster.nodes import RACK

_STYLES: Final[dict[State | None, str]] = {
    State.PENDING: "yellow",
    State.RESERVED: "magenta",
    State.STARTING: "cyan",
    State.RUNNING: "bold green",
    State.EVICTING: "bold red",
    State.BACKOFF: "red",
    State.FINISHED: "dim",
}
_HEARTBEAT_SECONDS: Final = 10.0
_RACKS_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class GangRow:
    """One gang at one moment.

    Attributes:
        gang: which.
        priority: as queuectl sees it.
        state: None until queuectl knows it.
        where: racks of its pods; of most of them while they end one after the other.
        pods: how many ``where`` speaks of.
        waited: seconds in the queue before its latest start.
        code: of the reason it is where it is, or that its GPUs idle; "" where the state says it all.
        why: the same as a sentence.
    """

    gang: Gang
    priority: int
    state: State | None
    where: str = ""
    pods: int = 0
    waited: float = 0.0
    code: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class TableState:
    """The whole table at one moment; ``racks``: GPUs in use by rack."""

    at: float
    rows: tuple[GangRow, ...]
    racks: Mapping[str, int]

    @property
    def gpus(self) -> int:
        """In use."""
        return sum(self.racks.values())

    @property
    def sentence(self) -> str:
        """The cluster in a line."""
        states = Counter(row.state for row in self.rows)
        shown = ", ".join(f"{states[s]} {s.lower()}" for s in State if states[s])
        busy = sum(1 for used in self.racks.values() if used)
        return f"{self.gpus}/{GPUS} GPUs in use on {busy}/{len(self.racks)} racks; {shown or 'nothing yet'}"


def moment(
    now: float,
    began: float,
    gangs: Iterable[Gang],
    workloads: Mapping[str, Mapping[str, Any]],
    nodes: Mapping[str, Node],
    pods: Iterable[PodRecord],
    before: TableState | None,
) -> TableState:
    """Put together what was read.

    Args:
        now: unix seconds.
        began: unix seconds of the start of the show.
        gangs: those submitted so far.
        workloads: queuectl's answer, by ``namespace/name``.
        nodes: of the cluster, by name.
        pods: of the cluster.
        before: the moment before; a gang whose pods end keeps the place it had.
    """
    racks: Counter[str] = Counter({node.labels[RACK]: 0 for node in nodes.values()})
    used: dict[str, Counter[str]] = {}
    owners = {one["uid"]: ref for ref, one in workloads.items()}
    for pod in pods:
        place = place_of(pod)
        if place is not None and place in nodes:
            rack = nodes[place].labels[RACK]
            racks[rack] += pod.requests[GPU]
            used.setdefault(owners.get(pod.owner, ""), Counter())[rack] += 1
    last = {row.gang.ref: row for row in before.rows} if before else {}
    rows = tuple(
        _row(gang, now, workloads.get(gang.ref), used.get(gang.ref, Counter()), last.get(gang.ref))
        for gang in gangs
    )
    return TableState(now - began, rows, racks)


def _row(
    gang: Gang,
    now: float,
    workload: Mapping[str, Any] | None,
    used: Counter[str],
    last: GangRow | None,
) -> GangRow:
    if workload is None:
        return GangRow(gang, 0, None)
    state = State(workload["state"])
    where, pods = _where(used), used.total()
    if last is not None and not state.waiting and pods < last.pods:
        where, pods = last.where, last.pods
    reason = workload["reason"]
    use = workload["use"] or {}
    plain = state.live or reason["code"] == Code.SUCCEEDED
    code, why = ("", "") if plain else (reason["code"], reason["message"])
    if use.get("state") == UseState.IDLE:
        code, why = use["state"], use["message"]
    return GangRow(
        gang, workload["priority"], state, where, pods, _waited(workload, now), code, why
    )


def _where(racks: Mapping[str, int]) -> str:
    names = sorted(racks)
    more = f" +{len(names) - _RACKS_SHOWN}" if len(names) > _RACKS_SHOWN else ""
    return " ".join(names[:_RACKS_SHOWN]) + more


def _waited(workload: Mapping[str, Any], now: float) -> float:
    """Seconds in the queue, until its latest start or now."""
    queued = datetime.fromisoformat(workload["queuedAt"]).timestamp()
    until = workload["startedAt"] or workload["finishedAt"]
    end = datetime.fromisoformat(until).timestamp() if until else now
    return max(0.0, end - queued)


class ProgressTable:
    """Shows one moment after the other: a table that lives on a terminal, lines of what changed elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: dict[str, tuple[State | None, bool]] = {}
        self._spoke = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, now: TableState) -> None:
        """Show it."""
        if self._live is not None:
            self._live.update(_table(now), refresh=True)
        else:
            self._lines(now)

    def _lines(self, now: TableState) -> None:
        for row in now.rows:
            told = row.state, row.code == UseState.IDLE
            if row.state is not None and self._shown.get(row.gang.ref) != told:
                self._shown[row.gang.ref] = told
                tail = "  ".join(filter(None, (row.where, row.code, row.why)))
                self._say(now, f"{row.gang.ref:<22} {row.gang.gpus:>3} GPUs  {row.state:<9} {tail}")
        if now.at - self._spoke >= _HEARTBEAT_SECONDS:
            self._spoke = now.at
            self._say(now, now.sentence)

    def _say(self, now: TableState, text: str) -> None:
        self._console.print(
            f"[{now.at:5.1f} s] {text}", highlight=False, markup=False, soft_wrap=True
        )


def _table(now: TableState) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in ("GANG", "TEAM", "KIND"):
        table.add_column(title, no_wrap=True)
    for title in ("GPUS", "PRIO"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    table.add_column("WHERE", no_wrap=True)
    table.add_column("WAITED", justify="right", no_wrap=True)
    table.add_column("WHY", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in now.rows:
        state = Text(row.state or "Submitted", style=_STYLES.get(row.state, ""))
        table.add_row(
            row.gang.name,
            row.gang.namespace,
            row.gang.kind,
            str(row.gang.gpus),
            str(row.priority),
            state,
            row.where,
            f"{row.waited:.0f} s",
            Text(row.why, style="dim"),
        )
    return Group(table, Text(), Text(now.sentence, style="bold"), _bars(now.racks))


def _bars(racks: Mapping[str, int]) -> Text:
    """A bar per rack: eight cells, one per eighth of its GPUs."""
    size = GPUS // max(1, len(racks))
    text = Text()
    for rack in sorted(racks):
        full = -(-racks[rack] * 8 // size)
        text.append(f"{rack} ", style="dim").append("█" * full, style="green")
        text.append("░" * (8 - full), style="dim").append("  ")
    return text


def verdicts(findings: Sequence[Any]) -> Iterable[Text]:
    """The findings as lines, each with ✓ or ✗, its numbers, and its problems below."""
    for finding in findings:
        mark = Text("✓ ", style="green") if finding.ok else Text("✗ ", style="bold red")
        yield mark.append(finding.name, style="bold").append(f": {finding.numbers}", style="")
        for problem in finding.problems[:5]:
            yield Text(f"    {problem}", style="red")
        if len(finding.problems) > 5:
            yield Text(f"    and {len(finding.problems) - 5} more", style="red")
