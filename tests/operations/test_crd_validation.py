"""REST and the CRDs accept the same objects, as far as a schema can say. Both readers get each object; the API server is a real one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from queuectl.domain.fleet import HOSTNAME
from queuectl.objects.configuration.config_kinds import CUSTOM_KINDS
from queuectl.objects.configuration.queue_config import READERS, validate
from queuectl.objects.errors import DocumentError
from tests.operations.custom import CustomCluster
from tests.support.crds import REFUSED as LEFT_OUT
from tests.unit import test_config_fields as tables
from tests.unit.test_config_fields import GPU, Fields, document, group, groups, merged, nested

pytestmark = pytest.mark.operations

KINDS = {kind.kind for kind in CUSTOM_KINDS}
GROUPS = "spec.resourceGroups"


def refused(body: Fields) -> str | None:
    """The message with which REST refuses an object, or None."""
    try:
        validate(body)
    except DocumentError as error:
        return str(error)
    return None


def differences(api: CustomCluster, bodies: list[Fields]) -> list[tuple[Fields, Any, Any]]:
    answers = [(body, refused(body), api.refusal(body)) for body in bodies]
    return [one for one in answers if (one[1] is None) != (one[2] is None)]


# ---- the rows of the tables of REST

ROWS = [
    *(
        document(kind, nested(GROUPS if GROUPS in field else field, value), more)
        for kind, field, value, _, more in tables.HONORED
    ),
    *(document(kind, nested(field, value)) for kind, field, value in tables.WARNED),
    *(document(kind, nested(field, value)) for kind, field, value, _ in tables.REFUSED),
    *(document(kind, fields) for kind, _, fields, _ in tables.PAIRS),
    *(
        document(kind, nested(GROUPS, many))
        for many, _ in tables.NUMBERS
        for kind in ("ClusterQueue", "Cohort")
    ),
    *(document("ClusterQueue", {"spec": spec}) for spec, *_ in tables.CHECKS),
]


def test_both_readers_agree_on_each_row_of_the_tables_of_rest(api: CustomCluster) -> None:
    rows = [row for row in ROWS if row["kind"] in KINDS]
    assert len(rows) > 150
    assert differences(api, rows) == []


def test_the_api_server_names_the_field_that_rest_names(api: CustomCluster) -> None:
    for kind, field, value, _ in tables.REFUSED:
        if kind in KINDS and "mig" not in field:
            message = api.refusal(document(kind, nested(field, value)))
            assert message is not None
            assert field in message or "cannot unmarshal number" in message


# ---- hostile and unlucky objects


def nest(depth: int) -> Fields:
    inner: Fields = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def quota(**changes: Any) -> Fields:
    return document(
        "ClusterQueue", nested(GROUPS, groups(**changes)), nested("spec.cohortName", "c")
    )


def queue(path: str, value: Any) -> Fields:
    return document("ClusterQueue", nested(path, value))


def topology(*labels: str) -> Fields:
    return {**document("Topology"), "spec": {"levels": [{"nodeLabel": one} for one in labels]}}


def flavor(**policy: Any) -> Fields:
    spec = {"nodeLabels": {"a": "b"}, "topologyName": "t", "policy": policy}
    return document("ResourceFlavor", {"spec": spec})


def mig(**entry: Any) -> Fields:
    return flavor(migConfigs={"m": [{"devices": [0], "mig-enabled": True, **entry}]})


def template(**fields: Any) -> Fields:
    return flavor(nodeTemplate={"allocatable": {}, "maximumNodes": 1, **fields})


OTHER: Fields = {"coveredResources": ["cpu"], "flavors": [{"name": "o", "resources": [{"name": "cpu", "nominalQuota": 1}]}]}  # fmt: skip
MANY = 2000

HOSTILE: list[tuple[str, str, Fields]] = [
    # the readers that accept it, what it is, the object
    ("both", "no spec", {k: v for k, v in document("ClusterQueue").items() if k != "spec"}),
    ("none", "list as spec", {**document("ClusterQueue"), "spec": []}),
    ("none", "text as spec", {**document("ClusterQueue"), "spec": "x"}),
    ("none", "no spec of a LocalQueue", {**document("LocalQueue"), "spec": None}),
    ("none", "400 digits", quota(nominalQuota="9" * 400)),
    ("none", "a number of 400 digits", quota(nominalQuota=10**400)),
    ("none", "2^63", quota(nominalQuota=2**63)),
    ("both", "2^63 - 1", quota(nominalQuota=2**63 - 1)),
    ("both", "9E", quota(nominalQuota="9E")),
    ("none", "a fraction that is not a text", quota(nominalQuota=1.5)),
    ("both", "a whole number with a point", quota(nominalQuota=8.0)),
    ("none", "a Boolean", quota(nominalQuota=True)),
    ("none", "empty text", quota(nominalQuota="")),
    ("none", "null", quota(nominalQuota=None)),
    ("both", "lends as much", quota(nominalQuota="1e3", lendingLimit="1k")),
    ("both", "odd notation", quota(nominalQuota="+8", lendingLimit="7.")),
    ("none", "2,000 groups", queue(GROUPS, tables.many(MANY))),
    ("none", "2,000 flavors", queue(GROUPS, tables.many(1, flavors=MANY))),
    ("none", "2,000 labels", queue("spec.namespaceSelector.matchLabels", {f"k{i}": "" for i in range(MANY)})),
    ("none", "2,000 expressions",
     queue("spec.namespaceSelector.matchExpressions", [{"key": "k", "operator": "Exists"}] * MANY)),
    ("none", "2,000 values",
     queue("spec.namespaceSelector.matchExpressions", [{"key": "k", "operator": "In", "values": ["v"] * MANY}])),
    ("none", "2,000 levels", topology(*(f"l{i}" for i in range(MANY)))),
    ("none", "2,000 resources", queue("spec.policy.maxPerUser", {f"r{i}": 1 for i in range(MANY)})),
    ("none", "2,000 checks", queue("spec.admissionChecks", [f"c{i}" for i in range(MANY)])),
    ("none", "2,000 configurations",
     flavor(migConfigs={f"r{i}": [{"devices": "all", "mig-enabled": False}] for i in range(MANY)})),
    ("both", "500 levels deep", queue("spec.concurrentAdmissionPolicy", nest(500))),
    ("none", "an unknown field, nested deeply", queue("spec.other", nest(200))),
    ("none", "an unknown field", {**document("ClusterQueue"), "other": 1}),
    ("both", "60.0 seconds", queue("spec.policy.minRuntimeSeconds", 60.0)),
    ("both", "null for an optional field", queue("spec.policy.minRuntimeSeconds", None)),
    ("none", "2^53 + 1 seconds", queue("spec.policy.minRuntimeSeconds", 2**53 + 1)),
    ("none", "null in a list", queue("spec.admissionChecks", [None])),
    ("none", "a number as a label", document("ResourceFlavor", nested("spec.nodeLabels", {"a": 1}))),
    ("none", "an empty key", document("ResourceFlavor", nested("spec.nodeLabels", {"": "1"}))),
    ("none", "a key with a space", document("ResourceFlavor", nested("spec.nodeLabels", {"a b": "1"}))),
    ("none", "a long key", document("ResourceFlavor", nested("spec.nodeLabels", {"a" * 70: "1"}))),
    ("none", "two lines", document("LocalQueue", nested("spec.clusterQueue", "a\n"))),
    ("none", "digits of another script", document("LocalQueue", nested("spec.clusterQueue", "\u0660"))),
    ("none", "a long name", document("LocalQueue", nested("spec.clusterQueue", "a" * 254))),
    ("none", "its own parent", document("Cohort", nested("spec.parentName", "x"))),
    ("both", "an empty parent", document("Cohort", nested("spec.parentName", ""))),
    ("none", "hostname first", topology(HOSTNAME, "rack")),
    ("both", "hostname last", topology("rack", HOSTNAME)),
    ("none", "a level twice", topology("rack", "rack")),
    ("none", "no level", topology()),
    ("both", "two groups", queue(GROUPS, [group(), OTHER])),
    ("none", "a flavor in two groups",
     queue(GROUPS, [group(), {**OTHER, "flavors": [{**OTHER["flavors"][0], "name": "h100"}]}])),
    ("none", "a resource in two groups",
     queue(GROUPS, [group(), {**group(), "flavors": [{**group()["flavors"][0], "name": "o"}]}])),
    ("none", "a flavor twice", queue(GROUPS, [{**OTHER, "flavors": OTHER["flavors"] * 2}])),
    ("none", "a resource twice", queue(GROUPS, [{**group(), "coveredResources": [GPU, GPU]}])),
    ("none", "a quota of another resource", queue(GROUPS, [{**OTHER, "coveredResources": [GPU]}])),
    ("none", "a missing quota", queue(GROUPS, [{**OTHER, "coveredResources": ["cpu", GPU]}])),
    ("none", "a victim key twice", queue("spec.policy.victimOrder", ["count", "count"])),
    ("none", "no victim key", queue("spec.policy.victimOrder", [])),
    ("none", "In without values", queue("spec.namespaceSelector.matchExpressions", [{"key": "k", "operator": "In"}])),
    ("none", "Exists with values",
     queue("spec.namespaceSelector.matchExpressions", [{"key": "k", "operator": "Exists", "values": ["a"]}])),
    ("none", "a toleration without key", document("ResourceFlavor", nested("spec.tolerations", [{"value": "x"}]))),
    ("none", "Exists with a value",
     document("ResourceFlavor", nested("spec.tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]))),
    ("none", "8 slices", mig(**{"mig-devices": {"4g.40gb": 2}})),
    ("none", "no profile", mig(**{"mig-devices": {"4x": 1}})),
    ("both", "profiles", mig(**{"mig-devices": {"1c.3g.20gb": 2, "1g.10gb+me": 1}})),
    ("none", "whole GPUs with profiles", mig(**{"mig-enabled": False, "mig-devices": {"1g.20gb": 2}})),
    ("none", "a filter", mig(**{"device-filter": "0x20B010DE"})),
    ("none", "a configuration without a name", flavor(migConfigs={"m m": [{"devices": [1], "mig-enabled": False}]})),
    ("none", "nodes in a node", template(nodesPerDomain={HOSTNAME: 1})),
    ("both", "zones of nodes", template(nodesPerDomain={"topology.kubernetes.io/zone": 1})),
    ("none", "a negative amount", template(allocatable={"cpu": "-1"})),
    ("both", "more than any node has", template(allocatable={"cpu": "1e30"})),
    ("none", "a check twice", queue("spec.admissionChecksStrategy.admissionChecks", [{"name": "b"}, {"name": "b"}])),
    ("none", "both forms of checks",
     document("ClusterQueue", nested("spec.admissionChecks", ["a"]),
              nested("spec.admissionChecksStrategy.admissionChecks", [{"name": "b"}]))),
    ("both", "old names of Kueue", queue("spec.flavorFungibility.whenCanBorrow", "Borrow")),
    ("none", "a priority of null", {**document("WorkloadPriorityClass"), "value": None}),
    # rules that no schema states, as docs/reference/crds.md lists them
    ("none", "lends more", quota(lendingLimit=9)),
    ("custom", "lends more, as text", quota(lendingLimit="9")),
    ("custom", "lends more than text", quota(nominalQuota="8", lendingLimit=9)),
    ("custom", "more than 2^63 - 1", quota(nominalQuota="8Ei")),
    ("custom", "a GPU twice", mig(devices=[1, 1], **{"mig-enabled": False})),
    ("custom", "text as devices", mig(devices="some", **{"mig-enabled": False})),
    # null, which the API server leaves out
    ("custom", "null as spec", {**document("ClusterQueue"), "spec": None}),
    ("custom", "null in a map", document("ResourceFlavor", nested("spec.nodeLabels", {"a": None}))),
    # texts for numbers, which REST converts, and amounts that are equal after rounding
    ("rest", "text as number", queue("spec.policy.minRuntimeSeconds", "60")),
    ("rest", "text as Boolean", queue("spec.policy.splitFlavors", "true")),
    ("rest", "minus zero", quota(nominalQuota="-0")),
    ("both", "lends a fraction more", quota(lendingLimit="8.5")),
    # metadata that Kubernetes checks
    ("rest", "upper case", merged(document("ClusterQueue"), nested("metadata.name", "Team_A"))),
    ("rest", "a label with a space", merged(document("ClusterQueue"), nested("metadata.labels", {"a b": "c"}))),
]  # fmt: skip


@pytest.mark.parametrize(("by", "body"), [pytest.param(b, o, id=i) for b, i, o in HOSTILE])
def test_a_hostile_object_is_accepted_by(api: CustomCluster, by: str, body: Fields) -> None:
    accepted = (refused(body) is None, api.refusal(body) is None)
    expected = {"both": (True, True), "none": (False, False)}
    assert accepted == {**expected, "rest": (True, False), "custom": (False, True)}[by]


def test_deep_nesting_ends_in_an_error_and_not_in_the_end_of_the_process(
    api: CustomCluster,
) -> None:
    deep = '{"a":' * 20_000 + "1" + "}" * 20_000
    text = (
        '{"apiVersion":"queuectl.dev/v1","kind":"ClusterQueue","metadata":{"name":"x"},'
        f'"spec":{{"concurrentAdmissionPolicy":{deep}}}}}'
    )
    path = "/apis/queuectl.dev/v1/clusterqueues?dryRun=All"
    with pytest.raises(Exception, match=r"exceeded max depth"):
        api.cluster.client.send("POST", path, text)


# ---- objects from the types

TEXTS = st.sampled_from(
    ["a", "b", "nvidia.com/gpu", "cpu", HOSTNAME, "1g.10gb", "10%", "100%", "", "a b"]
)
NUMBERS = st.sampled_from([0, 1, 2, 7, 60, 1800, 7200, -1])
PARTS = st.sampled_from([0, 0.02, 0.5, 1, 1.5])
AMOUNTS = st.sampled_from([0, 1, 8, "0", "8", "500m", "1Ti", "1e3", "-1", "x"])
SCALARS: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.StrType: TEXTS,
    inspect.BoolType: st.booleans(),
    inspect.IntType: NUMBERS,
    inspect.FloatType: PARTS,
}


def values(of: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type, and some that are not valid."""
    match of:
        case inspect.Metadata():
            return values(of.type)
        case inspect.StructType():
            kept = [field for field in of.fields if field.encode_name not in LEFT_OUT]
            return st.fixed_dictionaries(
                {f.encode_name: values(f.type) for f in kept if f.required},
                optional={f.encode_name: values(f.type) for f in kept if not f.required},
            )
        case inspect.UnionType():
            others = [one for one in of.types if not isinstance(one, inspect.NoneType)]
            if {type(one) for one in others} == {inspect.StrType, inspect.IntType}:
                return AMOUNTS
            return values(others[0])
        case inspect.ListType():
            return st.lists(values(of.item_type), max_size=3)
        case inspect.DictType(value_type=inspect.AnyType()):
            return st.just({})
        case inspect.DictType():
            return st.dictionaries(TEXTS, values(of.value_type), max_size=2)
        case inspect.EnumType():
            return st.sampled_from([*(one.value for one in of.cls), "Other"])
        case inspect.LiteralType():
            return st.sampled_from([*of.values, "Other"] if len(of.values) > 1 else of.values)
    return SCALARS[type(of)]


def specs(kind: str) -> st.SearchStrategy[Fields]:
    """Objects of a kind with some of its fields."""
    info = inspect.type_info(READERS[kind].wire)
    assert isinstance(info, inspect.StructType)
    spec = next(f.type for f in info.fields if f.encode_name == "spec")
    assert isinstance(spec, inspect.StructType)
    return values(spec).map(lambda body: {**document(kind), "spec": body})


@pytest.mark.parametrize("kind", sorted(KINDS - {"WorkloadPriorityClass"}))
def test_both_readers_agree_on_objects_from_the_types(api: CustomCluster, kind: str) -> None:
    outcomes = set()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(specs(kind))
    def agrees(body: Fields) -> None:
        rest, custom = refused(body), api.refusal(body)
        if custom is None and rest is not None and "is more than nominalQuota" in rest:
            return  # an amount as text
        assert (rest is None) == (custom is None), (rest, custom)
        outcomes.add(rest is None)

    agrees()
    assert outcomes == {True, False}
