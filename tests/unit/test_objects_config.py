"""Configuration documents, ours and Kueue's: what they mean, what is refused, what is only warned about."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.errors import BadInput
from queuectl.domain.fleet import Effect, Requirement, Taint, Toleration
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    Defragment,
    FlavorPreference,
    FlavorQuotas,
    Fungibility,
    LabelSelector,
    LocalQueue,
    Protection,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Topology,
    VictimKey,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.objects.configuration.links import MAX_COHORTS, dangling
from queuectl.objects.configuration.queue_config import (
    READERS,
    build,
    validate,
)
from queuectl.objects.errors import DocumentError
from queuectl.planner.quota import build_pools

OURS = "queuectl.dev/v1"


def document(kind: str, spec: Any = None, *, version: str = OURS, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **more}
    if spec is not None:
        body["spec"] = spec
    return body


def group(**changes: Any) -> dict[str, Any]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8, **changes}
    flavors = [{"name": "h100", "resources": [quota]}]
    return {"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}


EXPORTED = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ClusterQueue",
    "metadata": {
        "name": "team-a",
        "uid": "8e2a",
        "generation": 3,
        "resourceVersion": "99",
        "creationTimestamp": "2026-08-22T10:00:00Z",
        "finalizers": ["kueue.x-k8s.io/resource-in-use"],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "owner": "ml"},
    },
    "spec": {
        "cohort": "all",
        "queueingStrategy": "StrictFIFO",
        "namespaceSelector": {
            "matchLabels": {"team": "a"},
            "matchExpressions": [{"key": "env", "operator": "In", "values": ["dev", "prod"]}],
        },
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "Preempt"},
        "preemption": {
            "reclaimWithinCohort": "Never",
            "borrowWithinCohort": {"policy": "Never"},
            "withinClusterQueue": "LowerPriority",
        },
        "stopPolicy": "None",
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "memory"],
                "flavors": [
                    {
                        "name": "default",
                        "resources": [
                            {"name": "cpu", "nominalQuota": "500m", "borrowingLimit": "1"},
                            {"name": "memory", "nominalQuota": "4Gi", "lendingLimit": "1Gi"},
                        ],
                    }
                ],
            }
        ],
    },
    "status": {"pendingWorkloads": 3, "conditions": [{"type": "Active", "status": "True"}]},
}


def test_a_queue_exported_from_kueue_means_what_it_meant_there() -> None:
    kept, warnings = validate(EXPORTED)
    queue = build([kept], revision=4).cluster_queues["team-a"]
    assert queue == ClusterQueue(
        name="team-a",
        groups=(
            ResourceGroup(
                ("cpu", "memory"),
                (
                    FlavorQuotas(
                        "default",
                        {"cpu": 500, "memory": 4 * 2**30},
                        borrowing={"cpu": 1000},
                        lending={"memory": 2**30},
                    ),
                ),
            ),
        ),
        strategy=QueueingStrategy.STRICT_FIFO,
        within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
        namespace_selector=LabelSelector(
            (Requirement("team", "In", ("a",)), Requirement("env", "In", ("dev", "prod")))
        ),
        cohort="all",
        fungibility=Fungibility(WhenCan.TRY_NEXT_FLAVOR, WhenCan.MAY_STOP_SEARCH),
    )
    assert warnings == ()


def test_what_the_server_added_is_not_kept() -> None:
    kept, _ = validate(EXPORTED)
    assert kept["apiVersion"] == OURS
    assert kept["metadata"] == {"name": "team-a", "annotations": {"owner": "ml"}}
    assert kept["spec"]["cohortName"] == "all"
    assert "cohort" not in kept["spec"]
    assert "status" not in kept


def test_a_kept_document_is_kept_as_it_is() -> None:
    kept, warnings = validate(EXPORTED)
    assert validate(deepcopy(kept)) == (kept, warnings)


def read(kind: str, spec: dict[str, Any], **more: Any) -> Any:
    config = build([document(kind, spec, **more)], revision=1)
    parts = (config.cluster_queues, config.local_queues, config.flavors, config.topologies)
    (value,) = [value for part in parts for value in part.values()]
    return value


def test_a_flavor_brings_labels_taints_and_tolerations() -> None:
    assert read(
        "ResourceFlavor",
        {
            "nodeLabels": {"gpu": "h100", "arch": "x"},
            "nodeTaints": [{"key": "spot", "value": "1", "effect": "NoSchedule"}],
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
            "topologyName": "racks",
        },
    ) == ResourceFlavor(
        "x",
        (("arch", "x"), ("gpu", "h100")),
        (Taint("spot", Effect.NO_SCHEDULE, "1"),),
        (Toleration("spot", "Exists", "", Effect.NO_EXECUTE, 5),),
        "racks",
    )  # fmt: skip


def test_the_other_kinds() -> None:
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    assert read("Topology", {"levels": levels}) == Topology("x", ("rack", "kubernetes.io/hostname"))
    local = read("LocalQueue", {"clusterQueue": "cq", "stopPolicy": "Hold"})
    assert local == LocalQueue("default", "x", "cq", StopPolicy.HOLD)
    classes = build([document("WorkloadPriorityClass", value=7, description="d")], 1)
    assert classes.priority_classes == {"x": 7}


def test_no_selector_matches_no_namespace_and_an_empty_one_matches_all() -> None:
    assert read("ClusterQueue", {}).namespace_selector is None
    assert read("ClusterQueue", {"namespaceSelector": {}}).namespace_selector == LabelSelector()


def test_the_victim_order_is_ours_to_choose() -> None:
    queue = read("ClusterQueue", {"policy": {"victimOrder": ["count", "lostWork"]}})
    assert queue.victim_order == (VictimKey.COUNT, VictimKey.LOST_WORK)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": (document("ClusterQueue", {"quota": 1}), "ClusterQueue/x: spec.quota: unknown field"),
    "unknown field deep inside": (
        document("ClusterQueue", {"resourceGroups": [group(nominal=1)]}),
        "ClusterQueue/x: spec.resourceGroups[0].flavors[0].resources[0].nominal: unknown field",
    ),
    "unknown field at the top": (document("Cohort", owner="me"), "Cohort/x: owner: unknown field"),
    "missing field": (document("LocalQueue", {}), "LocalQueue/x: spec.clusterQueue: is required"),
    "no name": ({"apiVersion": OURS, "kind": "Cohort", "metadata": {}}, "Cohort/: metadata.name: is required"),
    "bad name": (
        {"apiVersion": OURS, "kind": "Cohort", "metadata": {"name": "a/b"}},
        "Cohort/a/b: metadata.name: 'a/b' is not a name of letters, digits, -, _ and .",
    ),
    "namespace of a cluster-scoped kind": (
        {"apiVersion": OURS, "kind": "Cohort", "metadata": {"name": "x", "namespace": "n"}},
        "Cohort/x: metadata.namespace: a Cohort has no namespace",
    ),
    "unknown kind": (document("Queue"), "Queue/x: kind: 'Queue' is not one of ClusterQueue, LocalQueue,"),
    "unknown version": (
        document("Cohort", version="kueue.x-k8s.io/v9"),
        "Cohort/x: apiVersion: 'kueue.x-k8s.io/v9' is not one of queuectl.dev/v1,",
    ),
    "Off without quotes": (
        {"apiVersion": "queuectl.dev/v1", "kind": "ClusterQueue", "metadata": {"name": "x"}, "spec": {"policy": {"defragment": False}}},
        'ClusterQueue/x: spec.policy.defragment: expected `str | null`, got `bool`; the values are Execute, Off, Plan; write "Off" in quotes',
    ),
    "wrong value": (
        document("ClusterQueue", {"queueingStrategy": "LIFO"}),
        "ClusterQueue/x: spec.queueingStrategy: invalid enum value 'LIFO'; the values are StrictFIFO, BestEffortFIFO, Backfill",
    ),
    "bad quantity": (
        document("ClusterQueue", {"resourceGroups": [group(nominalQuota="8 GPUs")]}),
        "ClusterQueue/x: spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: nvidia.com/gpu: '8 GPUs' is not a quantity",
    ),
    "negative quota": (
        document("ClusterQueue", {"resourceGroups": [group(nominalQuota=-1)]}),
        "nominalQuota: nvidia.com/gpu: '-1' is negative",
    ),
    "flavor twice": (
        document("ClusterQueue", {"resourceGroups": [group(), group(name="cpu") | {"coveredResources": ["cpu"]}]}),
        "spec.resourceGroups: flavor 'h100' occurs 2 times",
    ),
    "resource twice": (
        document("ClusterQueue", {"resourceGroups": [group(), group()]}),
        "spec.resourceGroups: resource 'nvidia.com/gpu' occurs 2 times",
    ),
    "quota of a resource that is not covered": (
        document("ClusterQueue", {"resourceGroups": [group(name="cpu")]}),
        "resources[0].name: 'cpu' is not in coveredResources",
    ),
    "covered resource without quota": (
        document("ClusterQueue", {"resourceGroups": [group() | {"coveredResources": ["nvidia.com/gpu", "cpu"]}]}),
        "spec.resourceGroups[0].flavors[0].resources: 'cpu' of coveredResources is missing",
    ),
    "two cohorts": (
        document("ClusterQueue", {"cohort": "a", "cohortName": "b"}),
        "spec.cohortName: 'b' differs from spec.cohort 'a'",
    ),
    "victim key twice": (
        document("ClusterQueue", {"policy": {"victimOrder": ["count", "count"]}}),
        "spec.policy.victimOrder: 'count' occurs 2 times",
    ),
    "our policy in Kueue's API": (
        document("ClusterQueue", {"policy": {"defragment": "Plan"}}, version="kueue.x-k8s.io/v1beta2"),
        "ClusterQueue/x: spec.policy: is a field of queuectl.dev/v1, not of Kueue's API",
    ),
    "selector without values": (
        document("ClusterQueue", {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        "spec.namespaceSelector.matchExpressions[0].values: In needs at least one",
    ),
    "hostname above a level": (
        document("Topology", {"levels": [{"nodeLabel": "kubernetes.io/hostname"}, {"nodeLabel": "rack"}]}),
        "Topology/x: spec.levels[0].nodeLabel: kubernetes.io/hostname can only be the last level",
    ),
    "no levels": (document("Topology", {"levels": []}), "Topology/x: spec.levels: 0 levels; 1 to 16 are allowed"),
    "level twice": (
        document("Topology", {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "rack"}]}),
        "Topology/x: spec.levels: node label 'rack' occurs 2 times",
    ),
    "toleration of everything with Equal": (
        document("ResourceFlavor", {"tolerations": [{"operator": "Equal"}]}),
        "ResourceFlavor/x: spec.tolerations[0].operator: must be Exists without a key",
    ),
    "negative policy": (
        document("ClusterQueue", {"policy": {"defragmentBudget": -1}}),
        "ClusterQueue/x: spec.policy.defragmentBudget: expected `int` >= 0",
    ),
    "priority that is not a number": (
        document("WorkloadPriorityClass", value="high"),
        "WorkloadPriorityClass/x: value: expected `int`, got `str`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_document_is_refused_naming_object_and_field(name: str) -> None:
    body, sentence = REFUSED[name]
    with pytest.raises(DocumentError) as caught:
        validate(body)
    assert sentence in str(caught.value)


def test_defaults_that_a_server_fills_in_are_not_news() -> None:
    spec = {
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "Never"}},
        "stopPolicy": "None",
        "fairSharing": {"weight": "1"},
        "policy": {"idleReclaim": {"mode": "Off"}, "defragment": "Off"},
    }
    assert validate(document("ClusterQueue", spec))[1] == ()


LEGACY = [
    ({}, Fungibility()),
    ({"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}, Fungibility()),
    ({"whenCanPreempt": "Preempt"}, Fungibility(when_can_preempt=WhenCan.MAY_STOP_SEARCH)),
    ({"whenCanBorrow": "TryNextFlavor"}, Fungibility(WhenCan.TRY_NEXT_FLAVOR)),
    (
        {"preference": "PreemptionOverBorrowing"},
        Fungibility(preference=FlavorPreference.PREEMPTION_OVER_BORROWING),
    ),
]


@pytest.mark.parametrize(("spec", "means"), LEGACY, ids=lambda value: str(value)[:40])
def test_fungibility_is_read_in_kueues_old_and_new_words(
    spec: dict[str, Any], means: Fungibility
) -> None:
    queue = build([document("ClusterQueue", {"flavorFungibility": spec})], 1).cluster_queues["x"]
    assert queue.fungibility == means


def test_what_shields_a_gang_and_what_may_move_it_is_the_queues_policy() -> None:
    policy = {
        "minRuntimeSeconds": 600,
        "maxEvictionsPerDay": 2,
        "cooldownSeconds": 60,
        "defragment": "Plan",
        "defragmentBudget": 28800,
    }
    kept, warnings = validate(document("ClusterQueue", {"policy": policy}))
    queue = build([kept], 1).cluster_queues["x"]
    assert queue.protection == Protection(600.0, 2, 60.0)
    assert (queue.defragment, queue.defragment_budget) == (Defragment.PLAN, 28800)
    assert warnings == ()
    assert kept["spec"]["policy"] == policy


def cohort(name: str, parent: str | None = None) -> dict[str, Any]:
    body = document("Cohort", {"parentName": parent} if parent is not None else {})
    return {**body, "metadata": {"name": name}}


def queue_in(name: str, above: str) -> dict[str, Any]:
    body = document("ClusterQueue", {"cohortName": above, "resourceGroups": [group()]})
    return {**body, "metadata": {"name": name}}


def test_a_cohort_has_a_parent_and_its_own_quota() -> None:
    spec = {"parentName": "root", "resourceGroups": [group(borrowingLimit=2, lendingLimit=1)]}
    kept, warnings = validate(document("Cohort", spec))
    quotas = FlavorQuotas("h100", {GPU: 8}, {GPU: 2}, {GPU: 1})
    assert build([kept], 1).cohorts == {
        "x": Cohort("x", "root", (ResourceGroup((GPU,), (quotas,)),))
    }
    assert warnings == ()


def test_limits_of_a_cohort_without_parent_give_a_warning_that_they_have_no_effect() -> None:
    _, warnings = validate(document("Cohort", {"resourceGroups": [group(borrowingLimit=2)]}))
    field = "spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit"
    assert warnings == (f"Cohort/x: {field}: has no effect: this Cohort has no parent",)


def test_limits_of_a_cluster_queue_without_cohort_give_a_warning_that_they_have_no_effect() -> None:
    spec = {"resourceGroups": [group(borrowingLimit=2, lendingLimit=1)]}
    kept, warnings = validate(document("ClusterQueue", spec))
    (quotas,) = build([kept], 1).cluster_queues["x"].groups[0].flavors
    assert quotas == FlavorQuotas("h100", {GPU: 8})
    field = "spec.resourceGroups[0].flavors[0].resources[0]"
    assert warnings == tuple(
        f"ClusterQueue/x: {field}.{limit}: has no effect: in no cohort"
        for limit in ("borrowingLimit", "lendingLimit")
    )


@pytest.mark.parametrize(
    ("documents", "sentence"),
    [
        ([cohort("a", "a")], "Cohort/a: spec.parentName: 'a' is the Cohort itself"),
        (
            [cohort("a", "b"), cohort("b", "a")],
            "Cohort/b: spec.parentName: is a cycle: b -> a -> b",
        ),
        (
            [cohort("a", "b"), cohort("b", "c"), cohort("c", "a"), cohort("leaf", "a")],
            "Cohort/c: spec.parentName: is a cycle: c -> a -> b -> c",
        ),
    ],
    ids=["itself", "two", "three and a leaf"],
)
def test_cohorts_in_a_circle_are_refused(documents: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(DocumentError) as caught:
        build(documents, 1, strict=True)
    assert str(caught.value) == sentence


def test_stored_cohorts_in_a_circle_have_no_parent() -> None:
    """Two concurrent writes can leave them; the cohorts alongside and below them still count."""
    circle = [cohort("a", "b"), cohort("b", "c"), cohort("c", "a"), cohort("leaf", "a")]
    beside = [cohort("below", "above"), cohort("above", "top")]
    parents = {name: one.parent for name, one in build([*circle, *beside], 1).cohorts.items()}
    none = dict.fromkeys(("a", "b", "c"))
    assert parents == {**none, "leaf": "a", "below": "above", "above": "top"}


def test_a_tree_of_stored_cohorts_that_is_too_high_is_planned_in_pieces() -> None:
    number = 4000
    stored = [cohort(f"c-{n}", f"c-{n + 1}") for n in range(number)]
    parents = {name: one.parent for name, one in build(stored, 1).cohorts.items()}
    members = [queue_in("lower", "c-0"), queue_in("upper", f"c-{number - 1}")]
    pools = build_pools(build([*stored, *members], 1))
    roots = [name for name, parent in parents.items() if parent is None]
    assert len(roots) == number // MAX_COHORTS
    for name in ("lower", "upper"):
        height, pool = 0, pools[name].parent
        while pool is not None:
            height, pool = height + 1, pool.parent
        assert 0 < height <= MAX_COHORTS


def test_a_chain_of_cohorts_is_not_a_circle_even_if_its_top_is_not_given() -> None:
    assert set(build([cohort("a", "b"), cohort("b", "gone")], 1).cohorts) == {"a", "b"}


def test_references_to_missing_objects_give_a_warning() -> None:
    config = build(
        [
            document("ClusterQueue", {"resourceGroups": [group()]}),
            document("LocalQueue", {"clusterQueue": "gone"}),
            document("ResourceFlavor", {"topologyName": "gone"}),
        ],
        1,
    )
    assert dangling(config) == (
        "ClusterQueue x: ResourceFlavor h100 does not exist",
        "LocalQueue default/x: ClusterQueue gone does not exist",
        "ResourceFlavor x: Topology gone does not exist",
    )


def test_a_node_template_with_an_unknown_level_gives_a_warning() -> None:
    template = {"allocatable": {}, "maximumNodes": 4, "nodesPerDomain": {"rack": 2, "row": 4}}
    config = build(
        [
            document("ResourceFlavor", {"topologyName": "x", "policy": {"nodeTemplate": template}}),
            document("Topology", {"levels": [{"nodeLabel": "rack"}]}),
        ],
        1,
    )
    text = "ResourceFlavor x: Topology x has no level row, which nodesPerDomain names"
    assert dangling(config) == (text,)


def test_an_override_without_a_matching_quota_gives_a_warning() -> None:
    when = {"from": "2026-01-31T12:00:00Z", "until": "2026-01-31T13:00:00Z", "add": 1}

    def warned(**what: str) -> tuple[str, ...]:
        override = document("QuotaOverride", {"resource": "nvidia.com/gpu", **when, **what})
        queue = document("ClusterQueue", {"resourceGroups": [group()]})
        flavor = document("ResourceFlavor", {})
        flavor["metadata"] = {"name": "h100"}
        return dangling(build([queue, flavor, override], 1))

    assert warned(clusterQueue="gone", flavor="h100") == (
        "QuotaOverride x: ClusterQueue gone does not exist",
    )
    assert warned(clusterQueue="x", flavor="a100") == (
        "QuotaOverride x: ClusterQueue x has no quota for nvidia.com/gpu of flavor a100",
    )
    (resource,) = group()["coveredResources"]
    assert warned(clusterQueue="x", flavor="h100", resource=resource) == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=5) | st.sampled_from(["4", "Never", "1e9", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["name", "resources", "flavors", "coveredResources", "nominalQuota", "levels", "nodeLabel", "key",
             "operator", "values", "policy", "victimOrder", "weight", "matchLabels", "x", "enable", "timeout",
             "preemptionStrategies", "transformations", "input", "outputs", "requeuingStrategy", "kueueKeys"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
spec_fields = st.sampled_from(
    ["resourceGroups", "cohort", "cohortName", "namespaceSelector", "preemption", "policy", "stopPolicy",
     "clusterQueue", "levels", "nodeLabels", "nodeTaints", "tolerations", "topologyName", "fairSharing", "y",
     "waitForPodsReady", "resources", "queuectl", "admissionFairSharing"]
)  # fmt: skip


@given(
    kind=st.sampled_from(sorted(READERS)),
    version=st.sampled_from([OURS, "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"]),
    spec=st.dictionaries(spec_fields, json_values, max_size=4) | json_values,
    name=st.sampled_from(["x", "", "A", "a.b"]) | st.none(),
    value=json_values,
)
def test_any_document_is_kept_stably_or_refused_with_a_sentence(
    kind: str, version: str, spec: Any, name: str | None, value: Any
) -> None:
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    if kind == "WorkloadPriorityClass":
        body = {**body, "value": value}
        del body["spec"]
    if kind == "Configuration":
        settings = spec if isinstance(spec, dict) else {"resources": spec}
        body = {
            "apiVersion": OURS if version == OURS else f"config.{version}",
            "kind": kind,
            **settings,
        }
    try:
        kept, warnings = validate(body)
    except BadInput as error:
        assert kind in str(error)  # noqa: PT017 - refusing is one of two right answers
    else:
        assert validate(deepcopy(kept)) == (kept, warnings)
        build([kept], 1)


def test_the_clusterqueues_below_a_cohort_with_backfill_have_its_strategy() -> None:
    def named(kind: str, name: str, **spec: Any) -> dict[str, Any]:
        api = {"apiVersion": "queuectl.dev/v1", "kind": kind}
        return api | {"metadata": {"name": name}, "spec": spec}

    config = build(
        [
            named("Cohort", "top", queueingStrategy="Backfill", policy={"plannedStarts": 3}),
            named("Cohort", "below", parentName="top"),
            named("ClusterQueue", "strict", cohort="below", queueingStrategy="StrictFIFO"),
            named("ClusterQueue", "apart", queueingStrategy="StrictFIFO"),
        ],
        1,
    )
    strict, apart = config.cluster_queues["strict"], config.cluster_queues["apart"]
    assert strict.strategy is QueueingStrategy.BACKFILL
    assert strict.backfill.planned_starts == 3
    assert apart.strategy is QueueingStrategy.STRICT_FIFO
