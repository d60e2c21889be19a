"""Cohorts, flavors and shares as ordinary objects, alongside the result of Kueue's own scheduler (August 2026).

Each row lists the running and the new gangs, and ``peer``: how many gangs Kueue evicts and the highest priority among them.
Ours must admit or evict where Kueue must, not evict where it must not, and never evict more gangs nor higher ones. A row
states where the peer's search, lowest and newest first, finds no victims although legal ones exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from queuectl.domain.quantity import GPU
from tests.planner.documents import (
    HOST,
    RACK,
    TOPOLOGY,
    Doc,
    Planned,
    cohort,
    flavor,
    groups,
    planned,
    quota,
)

ORDER = {"victimOrder": ["maxPriority", "count", "lostWork"]}
LOWER, NEWER, ANY, NEVER = "LowerPriority", "LowerOrNewerEqualPriority", "Any", "Never"
FINAL, INITIAL = "LessThanOrEqualToFinalShare", "LessThanInitialShare"

Amounts = Mapping[str, int]
World = Iterable[Doc | list[Doc]]


def document(kind: str, name: str, spec: Doc, **metadata: Any) -> Doc:
    meta = {"name": name, **metadata}
    return {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": meta, "spec": spec}


def queue(
    name: str,
    offered: Mapping[str, Mapping[str, Doc | int]],
    home: str | None = "all",
    *,
    within: str = LOWER,
    reclaim: str = ANY,
    borrow: str | None = None,
    threshold: int | None = None,
    weight: str | None = None,
    **spec: Any,
) -> list[Doc]:
    """A ClusterQueue that offers so much (flavor to resource to quota), and its LocalQueue."""
    preemption: Doc = {"withinClusterQueue": within, "reclaimWithinCohort": reclaim}
    if borrow is not None:
        limit = {} if threshold is None else {"maxPriorityThreshold": threshold}
        preemption["borrowWithinCohort"] = {"policy": borrow, **limit}
    body: Doc = {
        "namespaceSelector": {},
        "resourceGroups": groups(offered),
        "preemption": preemption,
        "policy": ORDER,
        **spec,
    }
    body |= {"cohortName": home} if home is not None else {}
    body |= {"fairSharing": {"weight": weight}} if weight is not None else {}
    return [
        document("ClusterQueue", name, body),
        document("LocalQueue", name, {"clusterQueue": name}),
    ]


def plain(name: str, cpu: Doc | int, home: str | None = "all", **more: Any) -> list[Doc]:
    """A ClusterQueue with cpu of one flavor."""
    return queue(name, {"default": {"cpu": cpu}}, home, **more)


def gang(
    name: str, at: str, asked: Amounts, priority: int = 0, on: str | None = None, age: int = 1
) -> Doc:
    """One pod that waits, or runs on flavor ``on``; the higher the ``age``, the older."""
    requests = {GPU if r == "gpu" else r: str(n) for r, n in asked.items()}
    pod = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    podset: Doc = {"name": "main", "count": 1, "template": {"spec": pod}}
    spec = {"queueName": at, "priority": priority, "podSets": [podset]}
    time = f"2026-01-01T00:{59 - age:02}:00Z"
    body = document("Workload", name, spec, creationTimestamp=time)
    body["apiVersion"] = "kueue.x-k8s.io/v1beta2"
    if on is not None:
        flavors = dict.fromkeys(requests, on)
        assigned = {"name": "main", "count": 1, "flavors": flavors, "resourceUsage": requests}
        since = {"type": "Admitted", "status": "True", "lastTransitionTime": time}
        admission = {"clusterQueue": at, "podSetAssignments": [assigned]}
        body["status"] = {"admission": admission, "conditions": [since]}
    return body


def runs(
    name: str, at: str, cpu: int = 0, priority: int = 0, on: str = "default", **asked: Any
) -> Doc:
    age = asked.pop("age", 1)
    return gang(name, at, ({"cpu": cpu} if cpu else {}) | asked, priority, on, age)


def comes(at: str, cpu: int = 0, priority: int = 0, **asked: int) -> Doc:
    return gang("in", at, ({"cpu": cpu} if cpu else {}) | asked, priority, age=0)


def shared(*strategies: str) -> Doc:
    chosen = {"preemptionStrategies": list(strategies or (FINAL, INITIAL))}
    return {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "fairSharing": chosen}


def outcome(*world: Doc | list[Doc], flavors: Iterable[str] = ("default",)) -> Planned:
    return planned(*(flavor(name) for name in flavors), *world)


class Row(NamedTuple):
    """``victims``: ours evicts one of these sets; "" = no gang, ``None`` = it starts at once."""

    why: str
    world: World
    incoming: Doc
    victims: tuple[str, ...] | None
    peer: tuple[int, int] | None = None


TWO: dict[str, dict[str, Doc | int]] = {"default": {"cpu": 4, "memory": 4}}

RESOURCES = [
    Row("a gang that uses none of the scarce resource stays, though lowest",
        (queue("a", TWO, None), runs("c", "a", 2, -5), runs("m", "a", memory=4)), comes("a", 1, 3, memory=2), ("m",), (1, 0)),
    Row("short of both, both must come free",
        (queue("a", TWO, None), runs("c", "a", 4), runs("m", "a", memory=4, priority=1)), comes("a", 1, 3, memory=1), ("c m",), (2, 1)),
    Row("one gang that frees both beats two that free one each",
        (queue("a", TWO, None), runs("c", "a", 2, age=9), runs("m", "a", memory=2, age=9), runs("both", "a", 2, memory=2)),
        comes("a", 2, 3, memory=2), ("both",), (1, 0)),
    Row("a resource asked for as 0 is not contended for",
        (queue("a", TWO), queue("b", TWO), runs("own", "a", 1, 9, memory=4), runs("x", "b", 5), runs("y", "b", 2)),
        comes("a", 1, 1, memory=0), ("y", "x"), (1, 0)),
    Row("memory is borrowed while cpu is taken back from its own; others are left alone",
        (queue("a", TWO, reclaim=LOWER), queue("b", TWO), runs("own", "a", 4), runs("x", "b", 4, -1)), comes("a", 2, 1, memory=6), ("own",), (1, 0)),
    Row("a queue beyond its own of one resource can reclaim the other",
        (queue("a", TWO), queue("b", TWO), runs("m", "a", memory=5, priority=9), runs("x", "b", 5), runs("y", "b", 3, 2)),
        comes("a", 4, 1), ("x",), (1, 0)),
    Row("not if it needs more than its own of the one that is short",
        (queue("a", TWO), queue("b", TWO), runs("x", "b", 4, -5), runs("own", "a", 4, 9)), comes("a", 1, 1), ("",), (0, 0)),
    Row("a borrower of memory is not a borrower of cpu",
        (queue("a", TWO), queue("b", TWO), runs("own", "a", 4, 9), runs("x", "b", 4, memory=6)), comes("a", 1, 1), ("",), (0, 0)),
    Row("nor does its memory help a gang that lacks cpu",
        (queue("a", TWO), queue("b", TWO), runs("m", "b", memory=5, priority=-5), runs("c", "b", 6), runs("d", "b", 2)),
        comes("a", 2, 1), ("d", "c"), (1, 0)),
    Row("a gang larger than its quota and all that others lend waits, whatever would leave",
        (queue("a", TWO), queue("b", {"default": {"cpu": quota(4, None, 1), "memory": 4}}), runs("x", "a", 2)), comes("a", 6, 9), ("",), (0, 0)),
]  # fmt: skip

ROOT = (
    cohort("root"),
    document(
        "Cohort", "left", {"parentName": "root", "resourceGroups": groups({"default": {"cpu": 4}})}
    ),
)
RICH = (document("Cohort", "root", {"resourceGroups": groups({"default": {"cpu": 1}})}), ROOT[1])
IN, BESIDE, OUT = plain("a", 0, "left"), plain("b", 0, "left"), plain("far", 0, "root")
MAY = plain("a", 0, "left", borrow=LOWER, threshold=0)

DEEP = [
    Row("quota of its cohort is taken back from outside, though it borrows of it itself",
        (*ROOT, IN, OUT, runs("x", "far", 4, 9)), comes("a", 2), ("x",), (1, 9)),
    Row("from as many outside as it takes",
        (*ROOT, IN, OUT, runs("x", "far", 2, 9), runs("y", "far", 2, 8)), comes("a", 4), ("x y",), (2, 9)),
    Row("the lowest of those outside",
        (*ROOT, IN, OUT, runs("x", "far", 2, 9), runs("y", "far", 2, 8)), comes("a", 2), ("y",), (1, 8)),
    Row("a queue outside that keeps within its own is safe",
        (*ROOT, IN, OUT, plain("own", 3, "root"), runs("x", "far", 2, 9), runs("y", "far", 2, 9), runs("low", "own", 3, -9)),
        comes("a", 2), ("x", "y"), (1, 9)),
    Row("its sister is not outside: they have the same right to it",
        (*ROOT, IN, BESIDE, runs("x", "b", 4, -9)), comes("a", 2), ("",), (0, 0)),
    Row("unless it may evict lower ones to borrow",
        (*ROOT, MAY, BESIDE, runs("x", "b", 4, -9)), comes("a", 2), ("x",), (1, -9)),
    Row("but only up to the threshold",
        (*ROOT, MAY, BESIDE, runs("x", "b", 4, 1)), comes("a", 2, 5), ("",), (0, 0)),
    Row("outside the cohort the threshold does not apply",
        (*ROOT, MAY, OUT, runs("x", "far", 4, 1)), comes("a", 2, 5), ("x",), (1, 1)),
    Row("one from outside and one of the same queue; not the one outside that is not lower",
        (*ROOT, plain("a", 0, "left", reclaim=LOWER), OUT, runs("x", "far", 1, 7), runs("y", "far", 2), runs("own", "a", 1)),
        comes("a", 3, 5), ("own y",), (2, 0)),
    Row("one from outside and one of its sister's",
        (*RICH, plain("a", 0, "left", reclaim=LOWER, borrow=LOWER, threshold=0), BESIDE, OUT, runs("x", "far", 2, -1), runs("high", "far", 2, 9), runs("y", "b", 1, -1)),
        comes("a", 3, 1), ("x y",), (2, -1)),
    Row("its own lower one rather than a high one outside; Kueue takes the one outside",
        (*ROOT, IN, OUT, runs("x", "far", 2, 9), runs("own", "a", 2)), comes("a", 2, 5), ("own",), (1, 9)),
    Row("what its cohort has none of, outside neither gives nor takes",
        (*ROOT, IN, plain("far", 4, "root"), runs("x", "far", 8, -9)), comes("a", 5, 5), ("",), (0, 0)),
    Row("free quota of the cohort above can still be lent",
        (*ROOT, IN, plain("far", 4, "root"), runs("x", "far", 3, -9)), comes("a", 5, 5), None),
    Row("of what the queue keeps and what its cohort has, both come back",
        (*ROOT, plain("a", quota(3, None, 1), "left"), OUT, runs("x", "far", 5, 9)), comes("a", 6), ("x",), (1, 9)),
]  # fmt: skip

FAIR = [
    Row("within its own of what is short it need not compare, though beyond it of something else",
        (shared(), queue("a", TWO), queue("b", TWO), runs("own", "a", 1, 9, memory=5), runs("x", "b", 5), runs("y", "b", 2, 1)),
        comes("a", 3), ("x",), (1, 0)),
    Row("so too where the other part of its request borrows and fits",
        (shared(FINAL), queue("a", TWO, within=NEVER), queue("b", TWO), runs("own", "a", 1, 9, memory=5), runs("x", "b", 7)),
        comes("a", 1, memory=1), ("x",), (1, 0)),
    Row("weight 2 may borrow twice as much",
        (shared(FINAL), plain("a", 2, weight="2"), plain("b", 2), plain("bank", 5), runs("own", "a", 3, 9), *(runs(n, "b", 2) for n in "xyz")),
        comes("a", 2), ("x", "y", "z"), (1, 0)),
    Row("weight 1 may not",
        (shared(FINAL), plain("a", 2), plain("b", 2), plain("bank", 5), runs("own", "a", 3, 9), *(runs(n, "b", 2) for n in "xyz")),
        comes("a", 2), ("",), (0, 0)),
    Row("the initial share lets one go that the final share protects",
        (shared(INITIAL), plain("a", 2), plain("b", 2), plain("bank", 4), runs("own", "a", 3, 9), runs("x", "b", 5)),
        comes("a", 1), ("x",), (1, 0)),
    Row("and the final share protects",
        (shared(FINAL), plain("a", 2), plain("b", 2), plain("bank", 4), runs("own", "a", 3, 9), runs("x", "b", 5)),
        comes("a", 1), ("",), (0, 0)),
    Row("reclaimWithinCohort LowerPriority holds under fair sharing too",
        (shared(), plain("a", 2, reclaim=LOWER), plain("b", 2), runs("x", "b", 4, 5)), comes("a", 1, 5), ("",), (0, 0)),
    Row("a large low one stays whose leaving would turn the imbalance round, a small high one goes, though the low one yields to it",
        (shared(), plain("a", 4), plain("b", 3), plain("bank", 3), runs("own", "a", 4, 9), runs("low", "b", 5, -1), runs("high", "b", 1, 1)),
        comes("a", 1), ("high",), (1, 1)),
    Row("Never means never",
        (shared(), plain("a", 2, reclaim=NEVER), plain("b", 2), runs("x", "b", 4)), comes("a", 1, 5), ("",), (0, 0)),
]  # fmt: skip

# Kueue follows its order, and once a low gang has left, the needed victim is out of reach: it evicts no gang.
GREEDY = [
    Row("a small lower one would leave first and protect the large one",
        (plain("a", 0, borrow=LOWER), plain("b", 3, reclaim=LOWER), plain("bank", 2, reclaim=LOWER), runs("big", "b", 3, 1), runs("small", "b", 1), runs("own", "a", 1, 9)),
        comes("a", 2, 2), ("big",)),
    Row("the order of exits in a cohort of weight 0 decides whether both may go",
        (shared(INITIAL), cohort("root"), document("Cohort", "right", {"parentName": "root", "fairSharing": {"weight": "0"}}),
         plain("a", 3, "root", reclaim=LOWER, within=NEVER), plain("b", 4, "right", reclaim=LOWER), plain("bank", 4, "root", reclaim=LOWER),
         runs("own", "a", 1, 9), runs("used", "bank", 3, 9), runs("x", "b", 3, -1), runs("y", "b", 2), runs("z", "b", 2, 1)),
        comes("a", 4, 3), ("x y",)),
    Row("its own gang leaves before the other queue's, so that shares allow the other",
        (shared(FINAL), plain("a", 6, within=NEWER, reclaim=LOWER), plain("b", 5), runs("a1", "a", 4, 2), runs("a2", "a", 1, -1),
         runs("x", "b", 3, -1), runs("y", "b", 1), runs("z", "b", 2, 1)), comes("a", 2), ("a2 x",)),
]  # fmt: skip

# Victims that would return and evict the preemptor, endlessly. Kueue evicts none either, unless the row states it.
RETURNING = [
    Row("the large one would evict the small one in its queue, and this one reclaim from the borrower",
        (plain("a", 0, borrow=LOWER), plain("b", 3), plain("bank", 2), runs("big", "b", 3, 1), runs("small", "b", 1), runs("own", "a", 1, 9)),
        comes("a", 2, 2), ("",), (0, 0)),
    Row("newer ones of the same priority yield too, where their queue allows it",
        (plain("a", 0, borrow=LOWER), plain("b", 3, within=NEWER), plain("bank", 2), runs("big", "b", 3, age=9), runs("small", "b", 1), runs("own", "a", 1, 9)),
        comes("a", 2, 2), ("",), (0, 0)),
    Row("not where queues may not take from higher ones",
        (plain("a", 0, borrow=LOWER), plain("b", 3, reclaim=LOWER), plain("bank", 2, reclaim=LOWER), runs("big", "b", 3, 1), runs("small", "b", 1), runs("own", "a", 1, 9)),
        comes("a", 2, 2), ("big",)),
    Row("nor where the small one does not yield to the large one",
        (plain("a", 0, borrow=LOWER), plain("b", 3, within=NEVER), plain("bank", 2), runs("big", "b", 3, 1), runs("small", "b", 1), runs("own", "a", 1, 9)),
        comes("a", 2, 2), ("big",)),
    Row("and where both go, neither makes room for the other",
        (plain("a", 0, borrow=LOWER), plain("b", 2), plain("bank", 4), runs("x", "b", 3), runs("y", "b", 3, 1)), comes("a", 6, 2), ("x y",), (2, 1)),
    Row("by initial shares too",
        (shared(INITIAL), plain("a", 2), plain("b", 4, weight="0.5"), runs("big", "b", 3, 3), runs("x", "b", 1), runs("y", "b", 1)), comes("a", 3), ("",), (0, 0)),
    Row("where the small one does not yield, the large one goes",
        (shared(INITIAL), plain("a", 2), plain("b", 4, weight="0.5", within=NEVER), runs("big", "b", 3, 3), runs("x", "b", 1), runs("y", "b", 1)), comes("a", 3), ("big",)),
    Row("a small one within its own once the large one has left; Kueue evicts both, again and again",
        (shared(), plain("a", 4), plain("b", 1), runs("small", "b", 1, -1), runs("large", "b", 4)), comes("a", 5), ("",)),
    Row("not if it cannot evict the higher gang for which it left",
        (shared(), plain("a", 4), plain("b", 1, reclaim=LOWER), runs("small", "b", 1, -1), runs("large", "b", 4)), comes("a", 5), ("large small",), (2, 0)),
    Row("but if it is the higher one itself it would; Kueue evicts both",
        (shared(), plain("a", 4), plain("b", 1, reclaim=LOWER), runs("small", "b", 1, 1), runs("large", "b", 4)), comes("a", 5), ("",)),
    Row("a gang within its own quota fears no return",
        (shared(), plain("a", 5), plain("b", 1), runs("small", "b", 1, -1), runs("large", "b", 4)), comes("a", 4), ("large",), (1, 0)),
]  # fmt: skip

SPARED = (
    plain("a", 5, within=NEWER, reclaim=LOWER), plain("b", 5, weight="2"),
    runs("a1", "a", 2, age=1), runs("a2", "a", 1), runs("a3", "a", 1, 1),
    runs("x", "b", 2, -1), runs("b1", "b", 2, 2), runs("b2", "b", 1, 2), runs("b3", "b", 1),
)  # fmt: skip

ROWS = [*RESOURCES, *DEEP, *FAIR, *GREEDY, *RETURNING]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_the_victims_are_not_worse_than_those_of_kueue(row: Row) -> None:
    made = outcome(*row.world, row.incoming)
    if row.victims is None:
        assert made.started == ["in"]
        return
    assert made.started == []
    assert made.victims in [sorted(some.split()) for some in row.victims]
    if row.peer is not None and row.victims != ("",):
        priority = {a.workload.name: a.workload.priority for a in made.snapshot.admitted}
        highest = max(priority[name] for name in made.victims)
        assert (highest, len(made.victims)) <= (row.peer[1], row.peer[0])


def test_a_victim_whose_exit_made_the_shares_fair_is_not_spared() -> None:
    """Kueue evicts ``a1 a2 a3 x`` in a fair order, then spares ``a3``, as the rest is enough, and does not check shares again.

    Then ``a`` borrows 1 and ``b`` is within its own: ``b`` could take its loss back by its smaller share, and ``a`` again.
    Ours uses the final shares: one victim more here, and ``a`` borrows nothing.
    """
    made = outcome(shared(), *SPARED, comes("a", 5, 3))
    assert made.victims == ["a1", "a2", "a3", "x"]


# Several pending gangs: Kueue considers one of each queue in a cycle, ours all of them in one plan.

BANK = (plain("a", 4), plain("b", 4), plain("c", 0))


def test_two_queues_that_reclaim_at_once_have_a_victim_each() -> None:
    """Kueue takes the second one's victim in a later cycle, when both had chosen the same."""
    made = outcome(
        *BANK,
        *(runs(name, "c", 4) for name in ("x", "y")),
        gang("one", "a", {"cpu": 4}),
        gang("two", "b", {"cpu": 4}),
    )
    assert made.victims == ["x", "y"]
    assert set(made.waiting.values()) == {"WaitingForPreemptedWorkloads"}


def test_capacity_of_victims_is_not_for_others_that_arrive_with_the_preemptor() -> None:
    made = outcome(
        *BANK, runs("x", "c", 8), gang("high", "a", {"cpu": 4}, 5), gang("low", "c", {"cpu": 4}, 1)
    )
    assert made.victims == ["x"]
    assert made.waiting["high"] == "WaitingForPreemptedWorkloads"
    assert "low" not in made.started


def test_one_victim_that_frees_enough_for_two_leaves_once() -> None:
    made = outcome(
        *BANK, runs("x", "c", 8), gang("one", "a", {"cpu": 4}), gang("two", "b", {"cpu": 4})
    )
    assert made.victims == ["x"]


def test_a_gang_with_quota_is_before_one_that_borrows_whatever_the_priority() -> None:
    world = (plain("a", 4), plain("c", 0))
    made = outcome(*world, gang("own", "a", {"cpu": 3}), gang("lent", "c", {"cpu": 3}, 9))
    assert made.started == ["own"]


@pytest.mark.parametrize(("weight", "first"), [("1", "few"), ("9", "many")])
def test_the_lower_share_is_served_first(weight: str, first: str) -> None:
    """Shares with the request counted in: 2 of 9 for ``few``, 4 of 9 by its weight for ``many``; room for one."""
    made = outcome(
        shared(),
        plain("a", 0, weight=weight, reclaim=NEVER),
        plain("b", 0, reclaim=NEVER),
        plain("bank", 9),
        runs("own", "a", 3, 9),
        runs("used", "bank", 5, 9),
        gang("many", "a", {"cpu": 1}, 5),
        gang("few", "b", {"cpu": 1}),
    )
    assert made.started == [first]


# Flavors of several resource groups.

SPLIT = {
    "cpus": {"cpu": 4},
    "racks": {"gpu": 2},
    "spots": {"gpu": 4},
}


def _offers(**policies: Any) -> list[Doc]:
    """cpu of one flavor, GPUs of two, in their own groups."""
    (body, local) = queue("a", {"cpus": SPLIT["cpus"]}, None, **policies)
    gpus = groups({"racks": SPLIT["racks"], "spots": SPLIT["spots"]})
    body["spec"]["resourceGroups"] += gpus
    return [body, local]


@pytest.mark.parametrize(
    ("gpus", "flavor_of_gpus"),
    [(2, "racks"), (3, "spots")],
    ids=["fits the first", "only the second"],
)
def test_each_resource_group_chooses_for_itself(gpus: int, flavor_of_gpus: str) -> None:
    made = outcome(_offers(), comes("a", 1, gpu=gpus), flavors=SPLIT)
    assert made.podset("in")["flavors"] == {"cpu": "cpus", GPU: flavor_of_gpus}


def test_a_victim_in_one_group_and_a_free_flavor_in_the_other() -> None:
    made = outcome(
        _offers(),
        gang("low", "a", {"cpu": 4}, on="cpus"),
        gang("gpus", "a", {"gpu": 2}, on="racks"),
        comes("a", 2, 1, gpu=3),
        flavors=SPLIT,
    )
    assert made.victims == ["low"]


def test_a_gang_that_fits_one_resource_nowhere_evicts_no_gang_for_the_other() -> None:
    made = outcome(
        _offers(), gang("low", "a", {"cpu": 4}, on="cpus"), comes("a", 2, 1, gpu=5), flavors=SPLIT
    )
    assert made.victims == []
    assert made.waiting["in"] == "ExceedsMaxQuota"


def test_a_resource_charged_by_a_transformation_needs_no_node() -> None:
    """Kueue uses a flavor without topology for it alongside the one with, as the pods request nothing of it themselves."""
    rule = {"input": "cpu", "strategy": "Retain", "outputs": {"example.com/credits": 10}}
    (body, local) = queue("a", {"racks": {"cpu": 4}}, None)
    body["spec"]["resourceGroups"] += groups({"bank": {"example.com/credits": 20}})
    incoming = comes("a", 1)
    incoming["spec"]["podSets"][0]["topologyRequest"] = {"required": RACK}
    settings = {"apiVersion": "queuectl.dev/v1", "kind": "Configuration"}
    host = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {RACK: "r", HOST: "n"}},
        "status": {
            "allocatable": {"cpu": "4", "pods": "9"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    made = planned(
        settings | {"resources": {"transformations": [rule]}},
        TOPOLOGY,
        flavor("racks", topology=True),
        flavor("bank"),
        body,
        local,
        host,
        incoming,
    )
    assert made.podset("in")["nodes"] == {"n": 1}
    assert made.podset("in")["flavors"] == {"cpu": "racks", "example.com/credits": "bank"}


TRY_ALL = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"}


@pytest.mark.parametrize(
    ("fungibility", "victim"),
    [
        ({"whenCanPreempt": "TryNextFlavor"}, "theirs"),
        (TRY_ALL | {"preference": "PreemptionOverBorrowing"}, "theirs"),
        ({"whenCanPreempt": "MayStopSearch"}, "own"),
    ],
    ids=["try the next", "without borrowing first", "stop at the first"],
)
def test_a_flavor_with_reclaim_comes_before_one_with_preemption_in_the_own_queue(
    fungibility: Doc, victim: str
) -> None:
    """Kueue ranks flavors: fit, reclaim, preemption within the queue; the first of the best."""
    flavors = ("one", "two", "three")
    made = outcome(
        queue("a", {f: {"gpu": 4} for f in flavors}, flavorFungibility=fungibility),
        queue("b", {f: {"gpu": 0} for f in flavors}),
        gang("own", "a", {"gpu": 1}, -5, on="one"),
        gang("theirs", "b", {"gpu": 1}, on="two"),
        gang("low", "b", {"gpu": 1}, -9, on="three"),
        comes("a", priority=5, gpu=4),
        flavors=flavors,
    )
    assert made.victims == [victim]


def test_a_borrower_evicts_no_gang_whose_queue_could_reclaim() -> None:
    """Kueue evicts ``s`` and ``x``; ``b`` then has quota for ``s`` again, and reclaims it: they would evict each other in turn."""
    made = outcome(
        plain("a", 3, borrow=LOWER),
        plain("b", 4),
        runs("own", "a", 1, 2),
        *(runs(name, "b", 2) for name in ("x", "y")),
        runs("t", "b", 1, 1),
        runs("s", "b", 1, -1),
        comes("a", 3, 1),
    )
    assert made.victims == []
