"""``queuectl top``: queues, admitted gangs with their GPU use, and pending gangs with reasons; live on a terminal."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from queuectl.cli import program, terminal
from queuectl.cli.client import DEFAULT_SERVER, Json, Namespace, Server, connect, workloads
from queuectl.cli.render import Column, age, emit_table, expected, laid_out, used
from queuectl.client.client import Client
from queuectl.domain.words import counted, gpu_count
from queuectl.objects.configuration.config_kinds import PREFIX

HOLDING: Final = ("Starting", "Running", "Evicting")
WAITING: Final = ("Pending", "Reserved", "Backoff", "Held")
SHOWN_WHEN_PIPED: Final = 20  # gangs in each table; `get workloads` lists all
_CHROME: Final = 8  # lines of a screen without a row: titles, blank lines, the last line


@dataclass(slots=True)
class QueueSums:
    """Sums over the gangs of one ClusterQueue, in GPUs. ``quota``: the nominal quota, overrides included; None = it has none of GPUs."""

    name: str
    quota: float | None = None
    held: float = 0
    used: float = 0
    unmeasured: float = 0
    idle: float = 0
    waiting: int = 0
    waiting_gpus: float = 0
    reasons: Counter[str] = field(default_factory=Counter)


def top_command(
    namespace: Namespace = None,
    interval: Annotated[
        float,
        typer.Option(min=1.0, max=86_400.0, metavar="SECONDS", help="Time between two updates."),
    ] = 5.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit, as in a pipe.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show queues with their GPUs, then admitted gangs, then pending gangs with reasons. Press q to exit."""
    with connect(server, waits=True) as client:
        if once or sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print(*current(client, namespace))
        else:
            _live(client, namespace, interval)


def current(
    client: Client, namespace: str | None
) -> tuple[list[QueueSums], list[Json], list[Json]]:
    """The queues, the gangs that hold GPUs (the largest first), and the pending gangs in queue order."""
    gangs = list(workloads(client, namespace=namespace, state=[*HOLDING, *WAITING]))
    # Tenants have no right to the configuration of ClusterQueues.
    uses = client.get(f"{PREFIX}/queueuse")["items"]
    holding = sorted((g for g in gangs if g["state"] in HOLDING), key=lambda g: -g["gpus"])
    waiting = sorted((g for g in gangs if g["state"] in WAITING), key=_turn)
    return summed(uses, gangs), holding, waiting


def _turn(gang: Json) -> tuple[bool, int, str]:
    place = gang["positionInClusterQueue"]
    return place is None, place or 0, gang["queuedAt"]


def summed(uses: Iterable[Json], gangs: Iterable[Json]) -> list[QueueSums]:
    """A row for each ClusterQueue that the user may see, and for each name that only gangs have."""
    queues = {use["name"]: QueueSums(use["name"], (use["gpus"] or {}).get("quota")) for use in uses}
    for gang in gangs:
        name = gang["clusterQueue"]
        queue = queues.setdefault(name, QueueSums(name or "(none)"))
        gpus = gang["gpus"]
        if gang["state"] in WAITING:
            queue.waiting += 1
            queue.waiting_gpus += gpus
            queue.reasons[gang["reason"]["code"]] += 1
            continue
        use = gang["use"] or {}
        queue.held += gpus
        if use.get("utilization") is None:
            queue.unmeasured += gpus
        else:
            queue.used += gpus * use["utilization"]
        if use.get("state") == "Idle":
            queue.idle += gpus
    return sorted(queues.values(), key=lambda q: q.name)


def _row(queue: QueueSums) -> Json:
    reason = queue.reasons.most_common(1)
    measured = queue.held - queue.unmeasured
    return {
        "name": queue.name,
        "quota": None if queue.quota is None else gpu_count(queue.quota),
        "held": gpu_count(queue.held),
        "used": f"{queue.used / measured:.0%}" if measured else ("unknown" if queue.held else None),
        "idle": gpu_count(queue.idle),
        "waiting": queue.waiting,
        "waitingGpus": gpu_count(queue.waiting_gpus),
        "why": f"{reason[0][0]} ({reason[0][1]})" if reason else None,
    }


QUEUES: Final = (
    Column("CLUSTERQUEUE", lambda o: o["name"]),
    Column("QUOTA", lambda o: o["quota"], spare=2),
    Column("GPUS", lambda o: o["held"]),
    Column("UTILIZATION", lambda o: o["used"]),
    Column("IDLE", lambda o: o["idle"]),
    Column("PENDING", lambda o: o["waiting"]),
    Column("PENDING GPUS", lambda o: o["waitingGpus"], spare=3),
    Column("MAIN REASON", lambda o: o["why"], spare=1),
)
_WORKLOAD: Final = Column("WORKLOAD", lambda o: f"{o['namespace']}/{o['name']}")
_GPUS: Final = Column("GPUS", lambda o: gpu_count(o["gpus"]))
_WHERE: Final = Column("CLUSTERQUEUE", lambda o: o["clusterQueue"], spare=3)
HOLDERS: Final = (
    _WORKLOAD,
    _GPUS,
    _WHERE,
    Column("STATE", lambda o: o["state"]),
    Column("FOR", lambda o: age(o["since"]), spare=2),
    Column("UTILIZATION", lambda o: used(o["use"]) if o["use"] else None),
    Column("GPU USE", lambda o: (o["use"] or {}).get("state"), spare=1),
)
WAITERS: Final = (
    _WORKLOAD,
    _GPUS,
    _WHERE,
    Column("POSITION", lambda o: o["positionInClusterQueue"]),
    Column("AGE", lambda o: age(o["queuedAt"])),
    Column("EXPECTED IN", lambda o: expected(o["expectedStart"]), spare=2),
    Column("REASON", lambda o: o["reason"]["message"] or o["reason"]["code"], long=True),
)


def _print(queues: Sequence[QueueSums], holding: Sequence[Json], waiting: Sequence[Json]) -> None:
    parts = (
        (QUEUES, [_row(queue) for queue in queues], 0),
        (HOLDERS, holding, len(holding) - SHOWN_WHEN_PIPED),
        (WAITERS, waiting, len(waiting) - SHOWN_WHEN_PIPED),
    )
    for number, (columns, rows, hidden) in enumerate(parts):
        if not rows:
            continue
        if number:
            typer.echo("")
        emit_table(columns, rows[: len(rows) - max(hidden, 0)], wide=False)
        if hidden > 0:
            typer.echo(f"and {hidden} more: {program.called()} get workloads")
    if not holding and not waiting:
        typer.echo("no gang is admitted or pending", err=True)


def screen(
    work: tuple[Sequence[QueueSums], Sequence[Json], Sequence[Json]],
    width: int,
    height: int,
    foot: str,
) -> Group:
    """One screen: the queues, and as many admitted and pending gangs as fit below."""
    queues, holding, waiting = work
    room = max(height - _CHROME, 3)
    first = min(len(queues), max(room // 3, 1))
    rest = max(room - first, 2)
    below = min(len(waiting), max(rest // 2, rest - len(holding)))
    parts: list[Any] = []
    for columns, rows, most in (
        (QUEUES, [_row(queue) for queue in queues], first),
        (HOLDERS, holding, rest - below),
        (WAITERS, waiting, below),
    ):
        parts.append(laid_out(columns, rows[:most], width)[0])
        hidden = len(rows) - most
        parts.append(Text(f"and {hidden} more" if hidden > 0 else "", style="dim"))
    return Group(*parts, Text(foot, style="dim", no_wrap=True))


def _live(client: Client, namespace: str | None, interval: float) -> None:
    console = terminal.console()
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            seen = current(client, namespace)
            running, waits = len(seen[1]), len(seen[2])
            foot = f"{time.strftime('%H:%M:%S')}  {counted(running, 'gang')} admitted, {waits} pending  press q to exit"
            live.update(screen(seen, console.width, console.height, foot), refresh=True)
            if _ended(interval):
                return


def _ended(seconds: float) -> bool:
    """Whether the user presses q within this time."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read single keys, without Enter."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
