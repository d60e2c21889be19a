"""The pages of the dashboard at 5,000 nodes and 10,000 pending workloads: first contentful paint, server time, bytes.

    python -m tests.bench.bench_pages [TIMES]

A warm server with PostgreSQL in its own process, and headless Chromium with an empty cache each time. It takes about five minutes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from playwright.async_api import Browser

from tests.web.browser import running

PAGES = {
    "overview": "/ui/",
    "jobs of a user": "/ui/mine?user=ann",
    "all jobs": "/ui/workloads",
    "search": "/ui/search?q=whisper",
    "a pending job": "/ui/workloads/wait-00007",
    "a running job": "/ui/workloads/run-00007",
    "a finished job": "/ui/workloads/life-done",
    "timeline": "/ui/timeline",
    "queues": "/ui/queues",
    "a queue": "/ui/queues/vision",
    "LocalQueues": "/ui/localqueues",
    "cohorts": "/ui/cohorts",
    "reservations": "/ui/reservations",
    "nodes": "/ui/nodes",
    "evictions": "/ui/evictions",
    "decisions": "/ui/decisions",
    "usage": "/ui/usage",
    "usage of a team's users": "/ui/usage?by=user&namespace=team-vision",
    "budgets": "/ui/budgets",
    "what-if": "/ui/whatif",
    "configuration": "/ui/config",
    "audit": "/ui/audit",
    "notifications": "/ui/notifications",
}
_MOST_KILOBYTES = 200
_SETTLE_MS = 500  # for what scripts read after the page is loaded
_MEASURE = """async () => {
  const page = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const parts = performance.getEntriesByType("resource").filter((one) => !one.name.includes("/events"));
  return {
    paint: paint ? paint.startTime : null,
    server: page.responseStart - page.requestStart,
    bytes: page.transferSize + parts.reduce((sum, one) => sum + one.transferSize, 0),
  };
}"""


@dataclass(frozen=True)
class Load:
    """One load of a page. Times in seconds."""

    paint: float
    server: float
    kilobytes: float


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """The address of a server over the large sample in PostgreSQL."""
    command = (sys.executable, "-m", "tests.web.serve_sample", "0", "--postgres")
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        line = (await server.stdout.readline()).decode().strip()
        if not line:
            raise RuntimeError("the server of the sample has ended")
        yield line.removesuffix("/ui/")
    finally:
        server.terminate()
        await server.wait()


async def loaded(browser: Browser, address: str) -> Load:
    """Load a page with an empty cache."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = await context.new_page()
        response = await page.goto(address, wait_until="load")
        assert response is not None, address
        assert response.ok, f"{address}: {response.status}"
        await page.wait_for_timeout(_SETTLE_MS)
        measured = await page.evaluate(_MEASURE)
    finally:
        await context.close()
    return Load(measured["paint"] / 1e3, measured["server"] / 1e3, measured["bytes"] / 1e3)


async def main(times: int) -> None:
    async with serving() as server, running() as browser:
        for path in PAGES.values():  # a warm server
            await loaded(browser, server + path)
        print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.0f}")
        print("| page | first contentful paint: median, slowest | server: median, slowest | kB |")
        print("| --- | --- | --- | --- |")
        for name, path in PAGES.items():
            loads = [await loaded(browser, server + path) for _ in range(times)]
            paints, servers = [one.paint for one in loads], [one.server for one in loads]
            size = max(one.kilobytes for one in loads)
            texts = (f"{median(each):.2f} s, {max(each):.2f} s" for each in (paints, servers))
            print(f"| {name} | {' | '.join(texts)} | {size:.0f} |", flush=True)
            if size > _MOST_KILOBYTES:
                print(f"{name}: more than {_MOST_KILOBYTES} kB", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
