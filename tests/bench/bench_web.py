"""How soon every page of the dashboard is seen: ``python -m tests.bench.bench_web``.

Two controllers as ``queuectl serve`` runs them, a leader and a standby, on a durable Postgres (fsync on) and
the cluster double: 5,000 nodes, gangs of four teams on nearly all of them, some of which had to leave for others, and
10,000 pending gangs. A real Chromium in a separate process opens each page with an empty cache. The table shows the median and the
slowest first contentful paint of ten rounds, the time until the first byte, and what was transferred for the page. The pause between two pages is longer than the life of a view, so each page reads the
state again. The sign-in page reads nothing: its paint is the time of the browser and the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
from collections.abc import Sequence
from typing import Final

import structlog
from playwright.async_api import Browser
from rich.console import Console
from rich.table import Table

from queuectl.cli.program import tune_interpreter
from queuectl.control.questions.viewer import MAX_AGE_SECONDS
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.migrate import upgrade
from queuectl.domain.ledger import State
from queuectl.domain.queries import WorkloadFilter
from tests.bench.backlog import LARGE, SMALL, Backlog, Size, configuration
from tests.bench.serving import served
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import server_directory
from tests.web.browser import running

ROLES: Final = ("leader", "standby")
TARGET_MS: Final = 1000.0
ROUNDS: Final = 10
MOST_KILOBYTES: Final = 200
PAGES: Final = (
    "/ui/signin",
    "/ui/",
    "/ui/queues",
    "/ui/queues/language",
    "/ui/cohorts",
    "/ui/localqueues",
    "/ui/localqueues/{namespace}/main",
    "/ui/workloads",
    "/ui/workloads?state=Pending",
    "/ui/workloads?sort=-gpus",
    "/ui/mine?namespace={namespace}",
    "/ui/workloads/{running}",
    "/ui/workloads/{waiting}",
    "/ui/search?q=lang",
    "/ui/timeline",
    "/ui/reservations",
    "/ui/nodes",
    "/ui/nodes?q=rack",
    "/ui/evictions",
    "/ui/whatif",
    "/ui/decisions",
    "/ui/usage",
    "/ui/usage?by=user",
    "/ui/budgets",
    "/ui/audit",
    "/ui/config",
    "/ui/config/clusterqueues/language",
)
PAINT: Final = """() => new Promise(done => new PerformanceObserver(list => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  const [page] = performance.getEntriesByType("navigation");
  if (paint) done([paint.startTime, page.responseStart - page.requestStart]);
}).observe({type: "paint", buffered: true}))"""
TRANSFERRED: Final = """() => ["navigation", "resource"].flatMap(kind => performance.getEntriesByType(kind))
  .filter(part => !part.name.includes("/events")).reduce((sum, part) => sum + part.transferSize, 0)"""
SETTLE_MS: Final = 300
"""For what scripts read after the page."""


Seen = dict[str, list[list[float]]]
"""By address, for each round: milliseconds until the first paint and until the first byte, and transferred bytes."""


# -- the browser, a process of its own ---------------------------------------------------------------------------------


async def painted(browser: Browser, address: str) -> list[float]:
    """The times and bytes of one page with an empty cache."""
    context = await browser.new_context(viewport={"width": 1280, "height": 844})
    page = await context.new_page()
    answer = await page.goto(address)
    if answer is None or not answer.ok:
        raise RuntimeError(f"{address}: {answer.status if answer else 'no answer'}")
    times: list[float] = await page.evaluate(PAINT)
    await page.wait_for_timeout(SETTLE_MS)
    transferred: float = await page.evaluate(TRANSFERRED)
    await context.close()
    return [*times, transferred]


async def look(addresses: list[str]) -> None:
    """Open all of them in turn, ROUNDS times over; print what was seen as JSON."""
    async with running() as browser:
        await painted(browser, addresses[0])  # its own start
        seen: Seen = {address: [] for address in addresses}
        for _ in range(ROUNDS):
            for address in addresses:
                await asyncio.sleep(1.2 * MAX_AGE_SECONDS)
                seen[address].append(await painted(browser, address))
    print(json.dumps(seen))


# -- the report --------------------------------------------------------------------------------------------------------


async def paths(backlog: Backlog) -> list[str]:
    """Of all pages; those of one workload are of a gang that runs and of one that waits."""
    store = backlog.controllers["leader"].store
    uids: dict[str, str] = {}
    for word, state in (("running", State.RUNNING), ("waiting", State.PENDING)):
        wanted = WorkloadFilter(cluster_queue="language", states=frozenset({state}))
        entry = (await store.list_workloads(wanted, None, 1)).entries[0]
        uids |= {word: entry.uid, "namespace": entry.namespace}
    return [page.format_map(uids) for page in PAGES]


async def looked_at(url: str, found: list[str]) -> Seen:
    """The paint times of these pages in a browser."""
    addresses = [url + path for path in found]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bench_web", "--look", *addresses,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"the browser's process ended with code {child.returncode}")
    seen: Seen = json.loads(output)
    return seen


def report(role: str, seen: Seen) -> Table:
    """One line for each page."""
    title = f"the controller that {role}; target: {TARGET_MS:.0f} ms"
    table = Table("page", "first byte ms", "first paint ms", "worst", "kB", title=title)
    for page, rounds in zip(PAGES, seen.values(), strict=True):
        paints, bytes_, sizes = zip(*rounds, strict=True)
        mark = " missed" if max(paints) > TARGET_MS else ""
        table.add_row(
            page,
            f"{statistics.median(bytes_):.0f}",
            f"{statistics.median(paints):.0f}",
            f"{max(paints):.0f}{mark}",
            f"{max(sizes) / 1000:.0f}{' missed' if max(sizes) > 1000 * MOST_KILOBYTES else ''}",
        )
    return table


async def main(size: Size, roles: Sequence[str]) -> None:
    """Fill a cluster, open the pages, and print a table for each of these controllers."""
    with server_directory(on_disk=True) as directory:
        async with EmbeddedServer(directory) as server:
            await upgrade(server.url())
            backlog = Backlog(server.url(), size)
            await backlog.start("leader")
            tune_interpreter()  # where serve does
            store = backlog.controllers["leader"].store
            for document in configuration(size):
                await store.put_config(document)
            await backlog.fill()
            await backlog.start("standby")
            found = await paths(backlog)
            for role in roles:
                async with served(backlog.controllers[role]) as url:
                    Console(width=100).print(report(role, await looked_at(url, found)))
            await backlog.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="to see whether it works")
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    parser.add_argument("--look", nargs="+", metavar="URL", help="be the browser")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with no_unit_is_set_aside():
        asyncio.run(
            look(asked.look) if asked.look else main(SMALL if asked.small else LARGE, asked.roles)
        )
