"""The API under attack alongside the controller that serves it: ``python -m tests.bench.bench_attack``.

1,000 gangs are submitted at once and admitted by a controller as ``queuectl serve`` runs it, on a real Postgres, with the REST API,
the dashboard and authentication on a real port: first without requests, then while 30 clients send the most expensive legal
and illegal requests there are (tests/bench/attackers.py): unknown ones, one without rights, a tenant and a viewer. Server and
controller share one process and event loop; the cluster double is a separate process, and so are the attackers. Printed for
both runs: the lag of the event loop, and of one that does nothing, in its own process; renewals of the LeaderLease and the longest time between two, memory; for the attack: the
requests of each sort and their answers. Goal: lag p99 below 100 ms, the lease kept.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from rich.console import Console
from rich.table import Table

from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli.program import tune_interpreter
from queuectl.control.settings import Settings
from queuectl.domain.identity import Right
from queuectl.web.app import OPEN, SIGN_IN
from tests.api.signed import people
from tests.bench.attackers import TEAM, TENANT, VIEWER
from tests.bench.bench_api import GANGS, World, admitted, quantiles, ruled, table
from tests.bench.bystander import lag
from tests.bench.serving import clients, report_of, served
from tests.doubles.access import MemoryAccess
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import running_postgres

AFTER_SECONDS: Final = 10.0
"""The gangs run, and nothing else is to be done."""
_PAGE = resource.getpagesize()


@dataclass
class Run:
    """One way of letting the gangs in. Seconds, MiB. ``worked``: of the loop's thread from look to look; ``beside``: lags of a process that does nothing."""

    wall: float = 0.0
    lags: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)
    memory: float = 0.0
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def longest(self) -> float:
        """Between two renewals."""
        pairs = zip(self.renewed, self.renewed[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)


def callers() -> MemoryAccess:
    """Also a tenant with the role of a team admin in its namespace, and a viewer of all namespaces."""
    access = people()
    resources = ("workloads", "localqueues", "reports")
    own = [
        Right(verb, resource, TEAM)
        for resource in resources
        for verb in ("get", "list", "watch", "update")
    ]
    access.know(TENANT, "tenant", *own)
    seen = ("workloads", "nodes", "clusterqueues", "decisions", "reports")
    every = [Right(verb, resource) for resource in seen for verb in ("get", "list", "watch")]
    access.know(VIEWER, "viewer", *every, Right("create", "plans"))
    return access


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


async def watched(world: World, run: Run) -> None:
    """Fill a run until canceled."""
    ask = world.cluster._ask

    async def noted(method: str, *arguments: object, **named: object) -> Any:
        answer = await ask(method, *arguments, **named)
        if method == "write_leader":
            run.renewed.append(time.monotonic())
        return answer

    world.cluster._ask = noted  # type: ignore[method-assign]
    sampler = asyncio.create_task(lag(run.lags, run.worked))
    try:
        while True:
            run.memory = max(run.memory, resident())
            await asyncio.sleep(0.2)
    finally:
        sampler.cancel()


async def measured(url: str, gangs: int, *, attacked: bool) -> Run:
    run = Run()
    authenticated = AuthenticationLayer(callers(), open_paths=OpenPaths(OPEN, SIGN_IN))
    async with (
        ruled(url, gangs) as world,
        served(world.parts, authenticated) as address,
        clients("tests.bench.bystander", address) as bystander,
        clients("tests.bench.attackers", address) if attacked else nullcontext() as attackers,
    ):
        watch = asyncio.create_task(watched(world, run))
        run.wall, _ = await admitted(world, gangs)
        await world.pause(AFTER_SECONDS)
        watch.cancel()
        run.beside = await report_of(bystander)
        if attackers is not None:
            run.answers = await report_of(attackers)
    return run


def print_results(alone: Run, attacked: Run, gangs: int, console: Console) -> None:
    console.print(
        table(
            [
                ("alone", alone.lags),
                ("of that its own CPU", alone.worked),
                ("an idle process alongside it", alone.beside),
                ("attacked", attacked.lags),
                ("of that its own CPU", attacked.worked),
                ("an idle process alongside it", attacked.beside),
            ],
            "lag of the event loop",
        )
    )
    answers = Table("request", "tried", "answers", "worst ms", title="the attack", box=None)
    every: Counter[str] = Counter()
    for name, seen in sorted(attacked.answers.items()):
        every.update(seen["statuses"])
        statuses = ", ".join(f"{n} × {s}" for s, n in sorted(seen["statuses"].items()))
        tried = str(sum(seen["statuses"].values()))
        answers.add_row(name, tried, statuses, f"{seen['worst'] * 1000:.0f}")
    console.print(answers)
    console.print(f"{every.total()} requests tried; answers {dict(sorted(every.items()))}")
    for name, run in (("alone", alone), ("attacked", attacked)):
        _, p99, worst = quantiles(run.lags)
        console.print(
            f"{name}: {gangs} gangs run after {run.wall:.1f} s; lag p99 {p99:.0f} ms, worst {worst:.0f} ms; "
            f"{len(run.renewed)} renewals, at most {run.longest:.1f} s apart; memory at most {run.memory:.0f} MiB"
        )
    # Each renewal puts the deadline a lease duration ahead.
    kept = attacked.longest < Settings().lease_duration
    lag_p99 = quantiles(attacked.lags)[1]
    console.print(
        f"goal: lag p99 {lag_p99:.0f} of 100 ms; the lease was {'kept' if kept else 'LOST'}"
    )


async def main(gangs: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    tune_interpreter()  # as serve does
    async with running_postgres() as postgres:
        runs = []
        for attacked in (False, True):
            database = await postgres.fresh()
            runs.append(await measured(postgres.server.url(database), gangs, attacked=attacked))
            await postgres.drop(database)
    print_results(runs[0], runs[1], gangs, Console(width=140))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=GANGS, help="how many are submitted")
    with no_unit_is_set_aside():
        asyncio.run(main(parser.parse_args().gangs))
