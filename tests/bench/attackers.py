"""Clients that send the most expensive requests there are, as a separate process: ``python -m tests.bench.attackers URL``.

It prints ``ready`` when it begins and continues until its standard input ends. Requests without a response a few seconds later
are canceled and count as unfinished. Then it prints the responses as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import httpx2

from queuectl.api.auth.authentication import PROOF
from queuectl.api.body import MAX_BYTES, MAX_LIST_BYTES
from tests.api.signed import NO_RIGHTS, bearer

TENANT, VIEWER = "of-the-tenant", "of-the-viewer"
TEAM: Final = "default"  # the tenant's namespace, with all gangs of the burst
WORKERS: Final = 30
PAUSE_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 20.0
"""Seconds for the last responses: a request that waits for its share of the CPU can take minutes."""
UNFINISHED: Final = "unfinished"
_JSON, _YAML = "application/json", "application/yaml"
_FORM: Final = "application/x-www-form-urlencoded"
_QUEUE: Final = f"/api/v1/namespaces/{TEAM}/localqueues/attack"
_LOCAL_QUEUE: Final[dict[str, Any]] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "LocalQueue",
    "metadata": {"namespace": TEAM},
    "spec": {"clusterQueue": "main"},
}


@dataclass(frozen=True)
class Attack:
    """One sort of request. ``headers`` and ``path`` are made for each."""

    name: str
    method: str
    path: Callable[[int], str]
    headers: Callable[[int], dict[str, str]]
    body: bytes = b""


def by(token: str, media: str = _JSON) -> Callable[[int], dict[str, str]]:
    return lambda _: {**bearer(token), "Content-Type": media}


def at(path: str) -> Callable[[int], str]:
    return lambda _: path


def _documents(size: int) -> bytes:
    """As many LocalQueues as fit."""
    one = len(json.dumps(_LOCAL_QUEUE)) + 40
    items = [
        {**_LOCAL_QUEUE, "metadata": {"namespace": TEAM, "name": f"queue-{i}"}}
        for i in range(size // one)
    ]
    return json.dumps({"items": items}).encode()


def _plan() -> bytes:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": f"what-{i}",
                "namespace": TEAM,
                "labels": {"queuectl.dev/queue-name": "main"},
            },
            "spec": {"parallelism": 8, "completions": 8, "template": template},
        }
        for i in range(100)
    ]
    return json.dumps({"submit": jobs, "drain": [f"n{i}" for i in range(20)]}).encode()


FLAT: Final = b"a: [" + b"1," * ((MAX_BYTES - 10) // 2) + b"1]"
MANY: Final = b"\n".join(b"key-%d: value" % i for i in range(9000))
NESTED: Final = b"[" * MAX_BYTES
HUGE: Final = b'{"items": [' + b"[]," * ((MAX_LIST_BYTES - 20) // 3) + b"[]]}"
REPORT: Final = "/api/v1/reports/usage?by=workload,hour&since=8760h"


def attacks() -> list[Attack]:
    """All attacks: by unknown callers, a caller without rights, a tenant, and a viewer."""
    tenant, no_rights = by(TENANT), by(NO_RIGHTS)
    form = urlencode({"text": MANY.decode(), "base": MANY.decode()}).encode()
    return [
        Attack("unknown: bad tokens", "GET", at("/api/v1/workloads"), lambda n: bearer(str(n))),
        Attack("unknown: bad cookies", "GET", at("/ui/"), lambda n: {"Cookie": f"queuectl={n}"}),
        Attack("unknown: sign-ins", "POST", at("/api/v1/session"), lambda _: {"Content-Type": _JSON}, b'{"token": "guess"}'),
        Attack("unknown: 2 MiB", "POST", at("/api/v1/dryrun"), lambda _: {"Content-Type": _YAML}, HUGE),
        Attack("unknown: the description", "GET", at("/api/v1/openapi.json"), lambda _: {}),
        Attack("no rights: 2 MiB", "POST", at("/api/v1/dryrun"), no_rights, HUGE),
        Attack("no rights: a plan", "POST", at("/api/v1/plans"), no_rights, HUGE),
        Attack("no rights: YAML", "PUT", at("/api/v1/cohorts/attack"), by(NO_RIGHTS, _YAML), FLAT),
        Attack("no rights: lists", "GET", at("/api/v1/workloads?limit=500"), no_rights),
        Attack("tenant: flat YAML", "PUT", at(_QUEUE), by(TENANT, _YAML), FLAT),
        Attack("tenant: many keys", "PUT", at(_QUEUE), by(TENANT, _YAML), MANY),
        Attack("tenant: nested YAML", "PUT", at(_QUEUE), by(TENANT, _YAML), NESTED),
        Attack("tenant: aliases", "PUT", at(_QUEUE), by(TENANT, _YAML), b"a: &a [1]\nb: [*a, *a]"),
        Attack("tenant: 2 MiB of lists", "POST", at("/api/v1/dryrun"), tenant, HUGE),
        Attack("tenant: 2 MiB of queues", "POST", at("/api/v1/dryrun"), tenant, _documents(MAX_LIST_BYTES)),
        Attack("tenant: a form", "POST", at("/ui/config/check"), lambda _: {**by(TENANT, _FORM)(0), PROOF: "1"}, form),
        Attack("tenant: lists", "GET", at("/api/v1/workloads?limit=500"), tenant),
        Attack("tenant: a year of hours", "GET", at(REPORT), tenant),
        Attack("tenant: explanations", "GET", lambda n: f"/api/v1/namespaces/{TEAM}/workloads/gang-{n % 1000:04}/explain", tenant),
        Attack("viewer: plans", "POST", at("/api/v1/plans"), by(VIEWER), _plan()),
        Attack("viewer: the cluster map", "GET", at("/api/v1/clustermap"), by(VIEWER)),
        Attack("viewer: pages", "GET", at("/ui/nodes"), by(VIEWER)),
    ]  # fmt: skip


async def attack(
    client: httpx2.AsyncClient,
    turns: Iterator[int],
    over: asyncio.Event,
    statistics: dict[str, Any],
) -> None:
    known = attacks()
    while not over.is_set():
        turn = next(turns)
        one = known[turn % len(known)]
        began = time.perf_counter()
        try:
            answer = await client.request(
                one.method, one.path(turn), headers=one.headers(turn), content=one.body
            )
            status = str(answer.status_code)
        except httpx2.TransportError as error:  # a body that is refused before all of it is sent
            status = type(error).__name__
        except asyncio.CancelledError:
            status = UNFINISHED
        seen = statistics.setdefault(one.name, {"statuses": Counter(), "worst": 0.0})
        seen["statuses"][status] += 1
        seen["worst"] = max(seen["worst"], time.perf_counter() - began)
        await asyncio.sleep(PAUSE_SECONDS)


async def main(url: str) -> None:
    over, statistics, turns = asyncio.Event(), dict[str, Any](), itertools.count()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120.0) as client:
        tasks = [
            asyncio.create_task(attack(client, turns, over, statistics)) for _ in range(WORKERS)
        ]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        over.set()
        finished, unfinished = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await asyncio.gather(*finished)
    print(json.dumps(statistics))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
