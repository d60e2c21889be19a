"""Any answer of the database or the API server can be lost, or arrive too late, without an effect on the outcome.

One scenario has a wait, admission, preemption, hold, release, a change of configuration, requeue and end, while usage is
accounted. A first run counts the requests of the controller. Then each request is once done without an answer, and once
done after the controller has continued without it. Each time the answer to a commit is lost, a gang of higher priority
arrives, so that the next plan differs.

`make test-fast` loses the answers of the API server, and those to a third of the requests to the database. `make test-faults` has all.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from queuectl.domain.commands import Action
from queuectl.domain.errors import ObjectGone, WriteConflict, WriteRefused
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.kills import EVERY_KILL
from tests.control.rig import Rig, configuration, gang, nodes, rig
from tests.control.test_crash_matrix import fresh
from tests.control.test_usage import OFTEN, PRICED, agrees, history
from tests.doubles.cluster import FakeCluster, Written, answer_lost
from tests.support.postgres import TestPostgres
from tests.support.relay import LATE, LOST, Fault, Request, postgres_relay

Asked = tuple[str, int]
"""The effect of a request, and the number of equal requests before it."""
WORLDS = 4  # at once
EACH = 40  # faults in one rig, at most
PODS = 2  # of each gang; each takes a node
SAMPLED = {
    **PRICED,
    "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "1s"},
}


@dataclass
class Network:
    """Counts the requests, and returns the fault for each request in ``due``.

    Attributes:
        met: requests in ``due`` that were sent.
        lost: called with the effect of a request before its answer is lost.
    """

    fault: Fault
    due: frozenset[Asked] = frozenset()
    asked: list[Asked] = field(default_factory=list)
    met: set[Asked] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    lost: Callable[[str], None] = lambda _: None

    def judge(self, request: Request) -> Fault | None:
        return self.fails(request.does) if request.does else None

    def fails(self, does: str) -> Fault | None:
        asked = does, self.counts[does]
        self.counts[does] += 1
        self.asked.append(asked)
        if asked not in self.due:
            return None
        self.met.add(asked)
        self.lost(does)
        return self.fault


class LossyCluster(FakeCluster):
    """The double behind a network: a patch without an answer is done at once, or later if nothing has changed by then."""

    network: Network

    async def _write(self, written: Written, action: Callable[[], Any]) -> Any:
        fault = self.network.fails(f"{written.resource} {written.name} {sorted(written.patch)}")
        if fault is None:
            return await super()._write(written, action)
        self.writes.append(written)
        if not fault.hold:
            action()
        else:
            asyncio.get_running_loop().call_later(fault.hold, _if_it_still_fits, action)
        raise answer_lost()


def _if_it_still_fits(action: Callable[[], Any]) -> None:
    with contextlib.suppress(WriteConflict, ObjectGone, WriteRefused):
        action()


@dataclass
class Rivals:
    """Gangs of high priority that arrive at critical moments. They, and others named here, end as soon as they run."""

    world: Rig
    kind: str
    uids: list[str] = field(default_factory=list)
    closed: bool = False
    """No more rivals come."""

    def come(self, does: str) -> None:
        if of_the_ledger(does) and not self.closed and not self.there():
            document = gang(self.kind, f"rival-{len(self.uids)}", PODS, "high")
            self.uids.append(self.world.cluster.submit(document))

    def there(self) -> bool:
        """A rival has arrived and has not ended."""
        jobs = map(self.world.cluster.job, self.uids)
        return any(job.outcome is None for job in jobs)

    def end(self) -> None:
        """End the gangs of which all pods run."""
        for uid in self.uids:
            if sum(pod.phase == "Running" for pod in self.world.cluster.pods_of(uid)) == PODS:
                self.world.cluster.finish(uid)


async def contest(world: Rig, kind: str, rivals: Rivals) -> None:
    """A gang waits for another, runs, is held and released, is preempted, runs again and ends."""
    filler = world.cluster.submit(gang(kind, "filler", PODS))
    await world.until_state(filler, State.RUNNING)
    low = world.cluster.submit(gang(kind, "low", PODS))
    # Then a plan in which it is pending for the same reason does not change it.
    waits = Code.WAITING_FOR_QUOTA
    await world.until_entry(low, lambda e: e.reason.code is waits or e.state.live, waits)
    rivals.uids.append(filler)
    await world.until_state(low, State.RUNNING)
    hold = await world.ask(low, Action.HOLD)
    await world.until_state(low, State.HELD)
    release = await world.ask(low, Action.RELEASE)
    await world.store.put_config(configuration(2 * PODS * 8)[2])
    await world.until_state(low, State.RUNNING)
    high = world.cluster.submit(gang(kind, "high", PODS, "high"))
    await world.until_state(high, State.RUNNING)
    rivals.uids.append(high)
    for uid in (high, *rivals.uids):
        await world.until_state(uid, State.FINISHED)
    await world.until_state(low, State.RUNNING)
    rivals.uids.append(low)
    for uid in (low, *rivals.uids):
        await world.until_state(uid, State.FINISHED)
    await world.at_rest()
    for asked in (hold, release):
        assert (await world.store.command(asked.id)).outcome == "done"  # type: ignore[union-attr]  # added above

    async def sampled() -> bool:
        return bool(await world.store.past_use())

    await world.until(sampled, "past use is sampled")

    async def ended() -> bool:
        entries = (await world.store.load()).entries
        return not rivals.there() and {e.state for e in entries} <= {State.FINISHED}

    # Until here, a lost commit of a sample of the usage brings one more rival.
    rivals.closed = True
    await world.until(ended, "each gang has finished")
    await world.at_rest()
    await agrees(world)
    await one_at_a_time(world)


async def one_at_a_time(world: Rig) -> None:
    """Check that committed runs do not overlap: each gang takes all nodes.

    An evicted gang frees its nodes when its pods are deleted. That can precede the commit of the end of its eviction.
    """
    held: dict[str, str] = {}
    for line in await history(world.store):
        if line.to_state.live:
            held[line.uid] = line.name
        else:
            held.pop(line.uid, None)
        assert len(held) <= 1, f"line {line.id}: {sorted(held.values())} hold the same nodes"


async def through_the_database(postgres: TestPostgres, kind: str, network: Network) -> None:
    """Run the scenario with a controller that reaches the database through the network."""
    async with (
        fresh(postgres) as url,
        postgres_relay(postgres.server.sockets) as (relay, sockets),
    ):
        way = url.replace(str(postgres.server.sockets), str(sockets))
        async with rig(url, PODS, leader_url=way) as world:
            world.settings = OFTEN
            await world.store.put_config(SAMPLED)
            rivals = Rivals(world, kind)
            network.lost, world.each_turn = rivals.come, rivals.end
            relay.judge = network.judge
            await contest(world, kind, rivals)


async def through_the_api(postgres: TestPostgres, kind: str, network: Network) -> None:
    """Run the scenario with a controller that reaches the API server through the network."""
    cluster = LossyCluster(nodes(PODS), clock=time.time)
    cluster.network = network
    async with fresh(postgres) as url, rig(url, PODS, cluster=cluster) as world:
        world.settings = OFTEN
        await world.store.put_config(SAMPLED)
        rivals = Rivals(world, kind)
        world.each_turn = rivals.end
        await contest(world, kind, rivals)


def worth_losing(asked: Iterable[Asked], fault: Fault) -> list[Asked]:
    """Every commit of the ledger, and the first request of each other kind. Only a commit has an effect when it is late."""
    return [
        (does, number)
        for does, number in asked
        if (number < 1 and (fault is LOST or does.startswith("COMMIT"))) or of_the_ledger(does)
    ]


def of_the_ledger(does: str) -> bool:
    return does.startswith("COMMIT after") and "usage_" not in does.replace("usage_marks (", "")


@pytest.mark.parametrize(
    "fault",
    # Each takes up to twenty seconds of CPU time.
    [LOST, pytest.param(LATE, marks=pytest.mark.faults)],
    ids=lambda fault: fault.name,
)
@pytest.mark.parametrize(
    ("tell", "kind"),
    [
        # It knows no kinds.
        pytest.param(through_the_database, "Job", marks=pytest.mark.kills),
        (through_the_api, "Job"),
        # Its objects differ, and the requests are the same.
        pytest.param(through_the_api, "PyTorchJob", marks=pytest.mark.faults),
    ],
)
@pytest.mark.timeout(600)
async def test_a_lost_answer_to_any_request_changes_no_outcome(
    postgres: TestPostgres,
    tell: Callable[[TestPostgres, str, Network], Awaitable[None]],
    kind: str,
    fault: Fault,
) -> None:
    whole = Network(fault)
    await tell(postgres, kind, whole)
    wanted = whole.asked if tell is through_the_api else worth_losing(whole.asked, fault)
    if tell is through_the_database and not EVERY_KILL:
        wanted = wanted[::3]
    assert len(wanted) >= 10, "the scenario has many requests"
    worlds = math.ceil(len(wanted) / EACH)
    turns = asyncio.Semaphore(WORLDS)

    async def once(due: frozenset[Asked]) -> None:
        network = Network(fault, due)
        async with turns:
            try:
                await tell(postgres, kind, network)
            except BaseException as error:
                error.add_note("lost: " + "; ".join(sorted(f"{n} {does[:99]}" for does, n in due)))
                raise
        # The numbers of plans, usage samples and deletions of old rows depend on time.
        assert len(network.met) >= 0.5 * len(due), due - network.met

    async with asyncio.TaskGroup() as group:
        for number in range(worlds):
            group.create_task(once(frozenset(wanted[number::worlds])))
