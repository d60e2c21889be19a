"""The live table: the state of each gang from queuectl, with the racks of its pods from the API server."""

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

from queuectl.demo.recorder import place_of
from queuectl.demo.scenario import GPUS, Gang
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
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
        gang: the gang.
        priority: its priority in queuectl.
        state: its state; None until queuectl has it.
        racks: racks of its pods; while pods end, the racks that it had.
        pods: number of pods in ``racks``.
        waited: seconds in the queue before its latest start.
        code: its reason code, or the state of idle GPUs; empty where the state is enough.
        reason: the same as a sentence.
    """

    gang: Gang
    priority: int
    state: State | None
    racks: str = ""
    pods: int = 0
    waited: float = 0.0
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TableState:
    """The table at one moment. ``racks``: GPUs in use by rack."""

    at: float
    rows: tuple[GangRow, ...]
    racks: Mapping[str, int]

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return sum(self.racks.values())

    @property
    def sentence(self) -> str:
        """The state of the cluster in one line."""
        states = Counter(row.state for row in self.rows)
        shown = ", ".join(f"{states[s]} {s.lower()}" for s in State if states[s])
        busy = sum(1 for used in self.racks.values() if used)
        return f"{self.gpus}/{GPUS} GPUs in use on {busy}/{len(self.racks)} racks; {shown or 'no gang yet'}"


def moment(
    now: float,
    began: float,
    gangs: Iterable[Gang],
    workloads: Mapping[str, Mapping[str, Any]],
    nodes: Mapping[str, Node],
    pods: Iterable[PodRecord],
    before: TableState | None,
) -> TableState:
    """The state of the table.

    Args:
        now: Unix seconds.
        began: Unix seconds of the start of the run.
        gangs: the gangs submitted so far.
        workloads: the answer of queuectl, by ``namespace/name``.
        nodes: the nodes of the cluster, by name.
        pods: the pods of the cluster.
        before: the previous state; a gang whose pods end keeps its racks.
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
    racks, pods = _shown(used), used.total()
    if last is not None and not state.waiting and pods < last.pods:
        racks, pods = last.racks, last.pods
    reason = workload["reason"]
    use = workload["use"] or {}
    plain = state.live or reason["code"] == Code.SUCCEEDED
    code, text = ("", "") if plain else (reason["code"], reason["message"])
    if use.get("state") == UseState.IDLE:
        code, text = use["state"], use["message"]
    return GangRow(
        gang, workload["priority"], state, racks, pods, _waited(workload, now), code, text
    )


def _shown(racks: Mapping[str, int]) -> str:
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
    """Shows the states: a live table on a terminal, otherwise a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: dict[str, tuple[State | None, bool]] = {}
        self._printed_at = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, now: TableState) -> None:
        """Show a state."""
        if self._live is not None:
            self._live.update(_table(now), refresh=True)
        else:
            self._lines(now)

    def _lines(self, now: TableState) -> None:
        for row in now.rows:
            shown = row.state, row.code == UseState.IDLE
            if row.state is not None and self._shown.get(row.gang.ref) != shown:
                self._shown[row.gang.ref] = shown
                tail = "  ".join(filter(None, (row.racks, row.code, row.reason)))
                self._print(
                    now, f"{row.gang.ref:<22} {row.gang.gpus:>3} GPUs  {row.state:<9} {tail}"
                )
        if now.at - self._printed_at >= _HEARTBEAT_SECONDS:
            self._printed_at = now.at
            self._print(now, now.sentence)

    def _print(self, now: TableState, text: str) -> None:
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
    table.add_column("RACKS", no_wrap=True)
    table.add_column("WAITED", justify="right", no_wrap=True)
    table.add_column("REASON", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in now.rows:
        state = Text(row.state or "Submitted", style=_STYLES.get(row.state, ""))
        table.add_row(
            row.gang.name,
            row.gang.namespace,
            row.gang.kind,
            str(row.gang.gpus),
            str(row.priority),
            state,
            row.racks,
            f"{row.waited:.0f} s",
            Text(row.reason, style="dim"),
        )
    return Group(table, Text(), Text(now.sentence, style="bold"), _bars(now.racks))


def _bars(racks: Mapping[str, int]) -> Text:
    """A bar for each rack, of eight cells: one for each eighth of its GPUs."""
    size = GPUS // max(1, len(racks))
    text = Text()
    for rack in sorted(racks):
        full = -(-racks[rack] * 8 // size)
        text.append(f"{rack} ", style="dim").append("█" * full, style="green")
        text.append("░" * (8 - full), style="dim").append("  ")
    return text


def verdicts(findings: Sequence[Any]) -> Iterable[Text]:
    """The findings as lines: ✓ or ✗, the numbers, and the problems below."""
    for finding in findings:
        mark = Text("✓ ", style="green") if finding.ok else Text("✗ ", style="bold red")
        yield mark.append(finding.name, style="bold").append(f": {finding.numbers}", style="")
        for problem in finding.problems[:5]:
            yield Text(f"    {problem}", style="red")
        if len(finding.problems) > 5:
            yield Text(f"    and {len(finding.problems) - 5} more", style="red")
