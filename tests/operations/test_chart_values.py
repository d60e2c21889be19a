"""Each value of the chart has its effect in the documents that helm renders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuectl.cluster.review import KUEUE_DEPLOYMENT, KUEUE_LEASE, KUEUE_WEBHOOKS
from queuectl.cluster.writes import BINDING, POLICY
from queuectl.control.bundled_database import OWNER
from queuectl.control.certificates import server_names
from queuectl.db.embedded import DATABASE, PORT
from queuectl.distribution import version
from queuectl.localcluster.versions import SUPPORTED
from queuectl.notify.receivers_file import read_receivers
from queuectl.objects.configuration.owners import FOLLOWED, GROUP, KUEUE_STATUSES, Owner
from queuectl.objects.keys import PARENT_KINDS
from queuectl.objects.kinds import KINDS
from tests.support.chart import CHART, WEBHOOK, documents, helm
from tests.support.chart_values import ALL, IMAGE, OLDER, by_name, of_kind, pod
from tests.support.gangruns import JOB_KINDS
from tests.support.outside import chart_without, declaration

pytestmark = pytest.mark.operations

MINORS = tuple(release.rpartition(".")[0] for release in SUPPORTED)


@pytest.mark.parametrize("release", MINORS)
def test_the_chart_renders_for_each_supported_version(release: str) -> None:
    for values in (IMAGE, ALL):
        found = documents(values, release)
        assert {one["apiVersion"] for one in found if "Admission" in one["kind"]} == {
            "admissionregistration.k8s.io/v1"
        }
        assert bool(of_kind(found, POLICY)) == (release not in OLDER)
        assert bool(of_kind(found, "MutatingWebhookConfiguration")) == (release in OLDER)


def test_the_webhook_can_serve_while_a_cluster_is_upgraded() -> None:
    assert not of_kind(documents({**IMAGE, **WEBHOOK}, "1.36"), POLICY)


def test_a_rendering_without_a_cluster_has_the_webhook_on_each_version() -> None:
    """As `helm template` knows no kinds. All its kinds exist on each version, and nothing acts twice."""
    for release in MINORS:
        done = helm("template", "queuectl", CHART, "--kube-version", release, values=IMAGE)
        found = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
        assert not of_kind(found, POLICY)
        assert not of_kind(found, BINDING)
        assert len(of_kind(found, "MutatingWebhookConfiguration")) == 1
        assert "queuectl-job-status" in {one["metadata"]["name"] for one in found}


def test_each_binding_of_a_policy_becomes_a_webhook_of_each_replica() -> None:
    """Those of the opt-in for Kueue's label too. tests/unit/test_webhook.py compares the fields."""
    bindings = {one["metadata"]["name"] for one in of_kind(documents(ALL), BINDING)}
    assert "queuectl-jobs-kueue" in bindings
    for replicas in (1, 3):
        values = {**ALL, **WEBHOOK, "webhook": {"replicas": replicas}}
        [made] = of_kind(documents(values), "MutatingWebhookConfiguration")
        webhooks = {one["name"].removesuffix(".queuectl.dev"): one for one in made["webhooks"]}
        assert set(webhooks) == {f"{name}-{n}" for name in bindings for n in range(replicas)}
        closed = {name for name, one in webhooks.items() if one["failurePolicy"] == "Fail"}
        assert closed == {f"{name}-{replicas - 1}" for name in bindings}


def test_the_webhook_has_the_values_of_the_pods() -> None:
    found = documents({**ALL, **WEBHOOK, "webhook": {"replicas": 3}}, namespace="gpu-queues")
    [controller, webhook] = (
        one["spec"] for kind in ("Deployment", "StatefulSet") for one in of_kind(found, kind)
    )
    assert webhook["replicas"] == 3
    shown, other = webhook["template"]["spec"], controller["template"]["spec"]
    for name in (
        "imagePullSecrets",
        "nodeSelector",
        "tolerations",
        "affinity",
        "priorityClassName",
    ):
        assert shown[name] == other[name]
    [container] = shown["containers"]
    assert container["image"] == other["containers"][0]["image"]
    hosts = [f"queuectl-webhook-{number}.gpu-queues.svc" for number in range(3)]
    expected = ["--namespace=gpu-queues", *(f"--host={host}" for host in hosts)]
    assert container["args"][:5] == ["webhook", *expected]
    services = {one["metadata"]["name"] for one in of_kind(found, "Service")}
    assert {host.partition(".")[0] for host in hosts} <= services
    assert webhook["template"]["metadata"]["labels"]["team"] == "platform"
    assert {one["metadata"]["name"] for one in of_kind(found, "PodDisruptionBudget")} == {
        "queuectl",
        "queuectl-webhook",
    }


def test_only_the_port_of_the_webhook_is_open() -> None:
    servers = [{"ipBlock": {"cidr": "192.0.2.0/28"}}]
    values = {**IMAGE, **WEBHOOK, "networkPolicy": {"webhookFrom": servers}}
    [workload, policy] = (
        one
        for kind in ("StatefulSet", "NetworkPolicy")
        for one in of_kind(documents(values), kind)
        if one["metadata"]["name"] == "queuectl-webhook"
    )
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "https"}], "from": servers}]


def test_each_object_is_in_the_namespace_of_the_release() -> None:
    found = documents(ALL, namespace="gpu-queues")
    assert "queuectl-system" not in str(found)
    assert {one["metadata"].get("namespace", "gpu-queues") for one in found} == {"gpu-queues"}
    [policy] = [one for one in of_kind(found, "ValidatingAdmissionPolicy") if one["metadata"]["name"] == "queuectl-pods"]  # fmt: skip
    assert "system:serviceaccount:gpu-queues:queuectl" in str(policy)


def test_the_training_operator_is_named_in_each_policy_with_controllers_of_jobs() -> None:
    operator = {"namespace": "training", "serviceAccount": "operator"}
    found = documents({**IMAGE, "trainingOperator": operator})
    account = "system:serviceaccount:training:operator"
    named = {
        (one["kind"].removesuffix("AdmissionPolicy"), one["metadata"]["name"]): count
        for one in found
        if (count := str(one).count(account))
    }
    assert named == {
        **{
            (policy, f"queuectl-{kind.plural}"): 1
            for policy in ("Mutating", "Validating")
            for kind in KINDS.values()
        },
        **{
            ("Validating", f"queuectl-unqueued-{kind.plural}"): 1
            for kind in KINDS.values()
            if kind.kind not in PARENT_KINDS
        },
        # Controllers of other jobs create these kinds too.
        ("Mutating", "queuectl-jobs"): 2,
        ("Mutating", "queuectl-jobsets"): 3,
        ("Mutating", "queuectl-pytorchjobs"): 2,
        ("Mutating", "queuectl-rayclusters"): 2,
        ("Mutating", "queuectl-trainjobs-jobsets"): 1,
        ("Validating", "queuectl-jobs"): 3,
        ("Validating", "queuectl-jobsets"): 3,
        ("Validating", "queuectl-pytorchjobs"): 2,
        ("Validating", "queuectl-rayclusters"): 2,
        ("Mutating", "queuectl-queue-labels"): 5,  # two for JobSets, one for each other kind
        ("Mutating", "queuectl-pods"): 1,
        ("Validating", "queuectl-pods"): 5,
        ("Validating", "queuectl-scheduling-groups"): 1,
    }
    assert "kubeflow:" not in str(found)


def default_bindings(values: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """The labels that keep a new job from the queue "default"."""
    return {
        tuple(one["key"] for one in selector["matchExpressions"])
        for binding in of_kind(documents(values), BINDING)
        if "namespaceSelector" in binding["spec"]["matchResources"]
        and (selector := binding["spec"]["matchResources"].get("objectSelector"))
    }


def test_a_label_of_kueue_keeps_a_job_from_the_default_queue_only_where_it_counts() -> None:
    ours, theirs = "queuectl.dev/queue-name", "kueue.x-k8s.io/queue-name"
    assert default_bindings(IMAGE) == {(ours,)}
    for value in ("enabled", "kueueRuns"):
        assert default_bindings({**IMAGE, "kueueKeys": {value: True}}) == {(ours, theirs)}


def test_an_administrator_decides_which_pods_preempt_gangs() -> None:
    preemption = {
        "managedPriority": 500,
        "priorityClasses": ["production"],
        "namespaces": ["kube-system", "gpu-operator"],
    }
    found = documents({**IMAGE, "preemption": preemption}, namespace="gpu-queues")
    names = ("queuectl-preemption", "queuectl-preemption-daemonsets")
    policies = [one for one in found if one["metadata"]["name"] in names]
    assert len(policies) == 2 * len(names)
    for one in policies:
        if one["kind"] == "ValidatingAdmissionPolicy":
            assert "'queuectl-managed', 'production'" in str(one)
            assert re.search(r"> 500|<= 500", str(one))
        else:
            [label, allowed] = one["spec"]["matchResources"]["namespaceSelector"][
                "matchExpressions"
            ]
            assert label["key"] == "queuectl.dev/allow-preemption"
            assert allowed["values"] == ["kube-system", "gpu-operator", "gpu-queues"]
    [managed] = of_kind(found, "PriorityClass")
    assert managed["value"] == 500
    [pods] = [one for one in of_kind(found, POLICY) if one["metadata"]["name"] == "queuectl-pods"]
    assert "path: '/spec/priority', value: 500" in str(pods["spec"]).replace("\\", "")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({"repository": "r/q"}, f"r/q:{version()}"),
        ({"repository": "r/q", "tag": "main"}, "r/q:main"),
        ({"repository": "r/q", "tag": "main", "digest": f"sha256:{'0' * 64}"}, f"r/q@sha256:{'0' * 64}"),
    ],
)  # fmt: skip
def test_the_migration_and_the_controller_run_the_same_image(image: Any, expected: str) -> None:
    shown = pod({"image": image})
    assert [one["image"] for one in (*shown["initContainers"], *shown["containers"])] == [
        expected
    ] * 2


def test_only_the_namespace_of_prometheus_reads_the_metrics() -> None:
    policy = by_name(documents(IMAGE))["NetworkPolicy", "queuectl"]
    metrics = next(
        rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "metrics"}]
    )
    [source] = metrics["from"]
    assert source["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }
    none = by_name(documents({**IMAGE, "networkPolicy": {"metricsFrom": []}}))
    rules = none["NetworkPolicy", "queuectl"]["spec"]["ingress"]
    assert [rule["ports"] for rule in rules] == [[{"port": "https"}]]
    assert not of_kind(documents({**IMAGE, "networkPolicy": {"enabled": False}}), "NetworkPolicy")


OWN_KINDS: Mapping[str, Any] = {**IMAGE, "jobKinds": JOB_KINDS}


def test_a_declared_kind_has_policies_rights_and_the_account_of_its_controller() -> None:
    before, after = (by_name(documents(values)) for values in (IMAGE, OWN_KINDS))
    added = {name for kind, name in after.keys() - before.keys() if "Admission" in kind}
    assert added == {
        "queuectl-gangruns",
        "queuectl-controller-gangruns",
        "queuectl-gangruns-default",
        "queuectl-unqueued-gangruns",
    }
    rules = after["ClusterRole", "queuectl"]["rules"]
    [rule] = [one for one in rules if one["resources"] == ["gangruns"]]
    assert rule["verbs"] == ["get", "list", "watch", "patch"]
    pods = after["ValidatingAdmissionPolicy", "queuectl-pods"]
    assert "system:serviceaccount:research:gangrun-controller" in str(pods)


def test_the_controller_reads_the_declared_kinds_and_restarts_when_they_change() -> None:
    found = by_name(documents(OWN_KINDS))
    [written] = found["ConfigMap", "queuectl-job-kinds"]["data"].values()
    assert yaml.safe_load(written) == {"jobKinds": JOB_KINDS}
    [container] = found["Deployment", "queuectl"]["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    file = variables["QUEUECTL_KINDS_FILE"]
    assert file is not None
    [mount] = [one for one in container["volumeMounts"] if file.startswith(one["mountPath"])]
    assert mount["name"] == "kinds"
    other = {**OWN_KINDS, "jobKinds": [JOB_KINDS[0] | {"index": ""}]}
    templates = [
        by_name(documents(values))["Deployment", "queuectl"]["spec"]["template"]["metadata"]
        for values in (OWN_KINDS, other)
    ]
    assert templates[0] != templates[1]


RECEIVERS: Mapping[str, Any] = {
    **IMAGE,
    "notifications": {
        "receivers": [
            {
                "name": "hook",
                "kind": "webhook",
                "url": "https://hooks.example.org/q",
                "hmacSecretFile": "hook-secret",
                "digestSeconds": 604800,
                "maxRows": 100000,
            }
        ],
        "credentialsSecret": "receivers",
    },
}


def test_the_controller_reads_the_receivers_and_their_credentials_without_a_restart(
    tmp_path: Path,
) -> None:
    found = by_name(documents(RECEIVERS))
    pod = found["Deployment", "queuectl"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    file = variables["QUEUECTL_NOTIFY_FILE"]
    [mount] = [one for one in container["volumeMounts"] if file.startswith(one["mountPath"] + "/")]
    [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == mount["name"]]
    assert volume["projected"]["sources"] == [
        {"configMap": {"name": "queuectl-receivers"}},
        {"secret": {"name": "receivers", "optional": True}},
    ]
    read = tmp_path / "receivers.yaml"
    read.write_text(found["ConfigMap", "queuectl-receivers"]["data"][Path(file).name])
    [receiver] = read_receivers(read)
    assert (receiver.name, receiver.digest_seconds, receiver.bounds.max_rows) == ("hook", 604800, 100000)  # fmt: skip
    fewer = {**RECEIVERS, "notifications": {"receivers": [{"name": "other"}], "credentialsSecret": "receivers"}}  # fmt: skip
    assert by_name(documents(fewer))["Deployment", "queuectl"]["spec"]["template"] == pod
    assert "QUEUECTL_NOTIFY_FILE" not in str(by_name(documents(IMAGE))["Deployment", "queuectl"])


def test_the_webhook_has_webhooks_for_a_declared_kind() -> None:
    before, after = (by_name(documents({**one, **WEBHOOK})) for one in (IMAGE, OWN_KINDS))
    configuration = ("MutatingWebhookConfiguration", "queuectl")
    names = [
        {one["name"]: one for one in found[configuration]["webhooks"]} for found in (before, after)
    ]
    added = names[1].keys() - names[0].keys()
    bindings = ("queuectl-gangruns", "queuectl-gangruns-default")
    assert added == {f"{one}-{number}.queuectl.dev" for one in bindings for number in (0, 1)}
    for name in added:
        [rule] = names[1][name]["rules"]
        assert (rule["apiGroups"], rule["resources"]) == (["research.example.com"], ["gangruns"])


def test_the_webhook_evaluates_the_policies_of_the_same_values_and_restarts_when_they_change() -> (
    None
):
    """Policies name the accounts of operators and depend on opt-ins."""
    account = {"namespace": "batch", "serviceAccount": "other"}
    metadata = []
    for values in (IMAGE, OWN_KINDS, {**IMAGE, "jobSetOperator": account}, ALL):
        found = by_name(documents({**values, **WEBHOOK}))
        written = found["ConfigMap", "queuectl-webhook"]["data"]["policies.yaml"]
        policies = {one["metadata"]["name"]: one for one in yaml.safe_load_all(written)}
        assert policies == {
            name: one for (kind, name), one in by_name(documents(values)).items() if kind == POLICY
        }
        called = {
            one["clientConfig"]["service"]["path"].removeprefix("/mutate/")
            for one in found["MutatingWebhookConfiguration", "queuectl"]["webhooks"]
        }
        assert called == policies.keys()
        template = found["StatefulSet", "queuectl-webhook"]["spec"]["template"]
        metadata.append(str(template["metadata"]["annotations"]))
    assert len(set(metadata)) == len(metadata)

    [container] = template["spec"]["containers"]
    [option] = [one for one in container["args"] if one.startswith("--policies=")]
    [mount] = [one for one in container["volumeMounts"] if one["mountPath"] in option]
    [volume] = [one for one in template["spec"]["volumes"] if one["name"] == mount["name"]]
    assert volume["configMap"] == {"name": "queuectl-webhook"}


def test_a_built_in_kind_that_is_declared_has_the_same_policies(tmp_path: Path) -> None:
    """Except for the account of its controller, and that the types of its templates are not checked."""
    without = chart_without("XGBoostJob", tmp_path / "queuectl")
    values = {**IMAGE, "jobKinds": [declaration("XGBoostJob")]}
    before, after = by_name(documents(IMAGE)), by_name(documents(values, chart=without))
    named = [one for one in before if "xgboostjobs" in one[1]]
    assert {kind for kind, _ in named} >= {POLICY, BINDING, "ValidatingAdmissionPolicy"}
    for one in named:
        text = json.dumps(after[one]).replace("dyn(object)", "object")
        expected = json.dumps(before[one]).replace("dyn(object)", "object")
        text, expected = (each.replace("dyn(oldObject)", "oldObject") for each in (text, expected))
        assert json.loads(text) == json.loads(expected), one


def test_a_reason_of_a_declared_kind_is_any_text() -> None:
    reason = 'the field "tasks": queuectl needs it'
    kind = JOB_KINDS[0] | {"required": [{"path": "spec.tasks", "reason": reason}]}
    assert f"spec.tasks: {reason}" in [
        rule.get("message")
        for one in of_kind(documents({**IMAGE, "jobKinds": [kind]}), "ValidatingAdmissionPolicy")
        for rule in one["spec"]["validations"]
    ]


WRONG_KINDS: list[tuple[list[Any], Mapping[str, Any], str]] = [
    ([JOB_KINDS[0] | {"kind": "JobSet"}], {}, "jobKinds[0] (JobSet): kind: JobSet is the name of another job kind"),
    ([JOB_KINDS[0] | {"plural": "jobs"}], {}, "jobKinds[0] (GangRun): plural: jobs is the name of another kind"),
    ([JOB_KINDS[0] | {"plural": "provisioning"}], {}, "jobKinds[0] (GangRun): plural: provisioning is the name of another kind"),
    ([JOB_KINDS[0], JOB_KINDS[0]], {}, "jobKinds[1] (GangRun): kind: GangRun is the name of another job kind"),
    ([{name: value for name, value in JOB_KINDS[0].items() if name != "suspend"}], {}, "suspend"),
    ([JOB_KINDS[0] | {"suspend": "spec['suspend']"}], {}, "/jobKinds/0/suspend"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "more", "error"), WRONG_KINDS, ids=[one for *_, one in WRONG_KINDS]
)
def test_a_wrong_declaration_is_refused_with_the_value_and_the_field(
    kinds: list[Any], more: Mapping[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        documents({**IMAGE, **more, "jobKinds": kinds})


def test_a_null_is_an_empty_list_an_operator_that_is_not_installed_or_the_default() -> None:
    removed = {"jobKinds": None, "mutation": None, "mpiOperator": None}
    absent = {"jobKinds": [], "mutation": "auto", "mpiOperator": {"serviceAccount": ""}}
    assert documents({**IMAGE, **removed}) == documents({**IMAGE, **absent})


def test_shadow_mode_renders_rights_to_read_and_nothing_that_acts() -> None:
    """Also where the values of a live queuectl are left in place."""
    for values in (IMAGE, ALL):
        made = documents({**values, "shadow": True}, "1.33")
        kinds = {one["kind"] for one in made}
        assert not {kind for kind in kinds if "Admission" in kind or "Webhook" in kind}
        assert not kinds & {"PriorityClass", "CustomResourceDefinition", "APIService"}
        servers = {one["metadata"]["name"] for one in of_kind(made, "StatefulSet")}
        assert servers <= {"queuectl-database"}
        roles = by_name(made)
        rules = roles["ClusterRole", "queuectl-shadow"]["rules"]
        writes = {
            (verb, resource)
            for rule in rules
            for verb in rule["verbs"]
            for resource in rule["resources"]
            if verb not in ("get", "list", "watch")
        }
        assert writes == {("create", "tokenreviews"), ("create", "subjectaccessreviews")}
        definitions = {kind.definition for kind in FOLLOWED[Owner.KUEUE]}
        assert _permitted(rules, "watch") == definitions
        assert definitions <= _permitted(rules, "list")
        assert {name for rule in rules for name in rule.get("resourceNames", ())} == definitions
        own = [rule for rule in roles["Role", "queuectl-shadow"]["rules"] for _ in rule["verbs"]]
        assert {tuple(rule["resources"]) for rule in own} == {
            ("leases",),
            ("persistentvolumeclaims",),
        }
        bound = [one for one in made if one["kind"].endswith("RoleBinding") if "roleRef" in one]
        own_objects = {
            "queuectl-tls",
            "queuectl-ca",
            "queuectl-database",
        }  # a certificate, a database
        in_rest = {"queuectl-platform-admin"}  # for `kubectl exec`
        assert {one["roleRef"]["name"] for one in bound} <= {
            "queuectl-shadow",
            *own_objects,
            *in_rest,
        }
        [container] = pod({**values, "shadow": True})["containers"]
        assert {"name": "QUEUECTL_SHADOW", "value": "true"} in container["env"]


@pytest.mark.parametrize("owner", Owner)
def test_the_owner_of_the_configuration_adds_its_setting_and_the_rights_on_its_objects(
    owner: Owner,
) -> None:
    """The only right to write objects is that to patch the status of those that queuectl writes."""
    values = {**IMAGE, "configuration": {"owner": owner.value, "settleSeconds": 9}}
    made = by_name(documents(values))
    variables = {one["name"]: one.get("value") for one in pod(values)["containers"][0]["env"]}
    assert variables["QUEUECTL_CONFIGURATION_OWNER"] == owner
    settle = variables.get("QUEUECTL_CONFIGURATION_SETTLE_SECONDS")
    assert settle == (None if owner is Owner.DATABASE else "9")
    rules = made["ClusterRole", "queuectl-configuration-owner"]["rules"]
    groups = {Owner.KUBERNETES, *({owner} - {Owner.DATABASE})}
    kinds = [kind for group in groups for kind in FOLLOWED[group]]
    statuses = {
        f"{kind.plural}/status.{kind.group}"
        for kind in kinds
        if kind.group == GROUP or kind.kind.kind in KUEUE_STATUSES
    }
    assert _permitted(rules, "list") == {kind.definition for kind in kinds}
    assert _permitted(rules, "patch") == statuses
    definitions = {kind.definition for kind in kinds}
    named = {name for rule in rules for name in rule.get("resourceNames", ())}
    of_a_running_kueue = {
        path.rpartition("/")[2] for path in (*KUEUE_WEBHOOKS, KUEUE_DEPLOYMENT, KUEUE_LEASE)
    }
    assert named == definitions | (of_a_running_kueue if owner is Owner.KUEUE else set())
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch", "get", "patch"}
    assert all("resourceNames" in rule for rule in rules if rule["verbs"] == ["get"])


def _permitted(rules: list[dict[str, Any]], verb: str) -> set[str]:
    """The resources with their groups."""
    return {
        f"{resource}.{group}"
        for rule in rules
        if verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


# ---- the database and the certificate

OWN_DATABASE = {**IMAGE, "database": {"secretName": "queuectl-database"}}


@pytest.mark.parametrize("values", [IMAGE, ALL, {**ALL, **WEBHOOK}])
def test_no_secret_has_content_so_that_two_renderings_are_equal(values: Mapping[str, Any]) -> None:
    secrets = of_kind(documents(values), "Secret")
    assert secrets
    assert not [one for one in secrets if {"data", "stringData"} & one.keys()]


def test_the_database_of_the_chart_runs_with_as_little_as_it_can() -> None:
    found = by_name(documents(IMAGE))
    server = found["StatefulSet", "queuectl-database"]["spec"]
    spec = server["template"]["spec"]
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert server["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    [directory] = [arg for arg in container["args"] if arg.startswith("--directory=")]
    env = {one["name"]: one.get("value") for one in container["env"]}
    sockets = f"{directory.partition('=')[2]}/sock"
    assert (
        env["QUEUECTL_DATABASE_URL"]
        == f"postgresql://{OWNER}@/{DATABASE}?host={sockets}&port={PORT}"
    )
    policy = found["NetworkPolicy", "queuectl-database"]["spec"]
    assert (
        policy["podSelector"]["matchLabels"].items()
        <= server["template"]["metadata"]["labels"].items()
    )
    [controller] = policy["ingress"][0]["from"]
    deployment = found["Deployment", "queuectl"]["spec"]["template"]["metadata"]["labels"]
    assert controller["podSelector"]["matchLabels"].items() <= deployment.items()
    rules = found["Role", "queuectl-database"]["rules"]
    named = [(*rule["resources"], *rule["resourceNames"]) for rule in rules]
    assert named == [
        ("secrets", "queuectl-bundled-database", "queuectl-database-tls"),
        ("configmaps", "queuectl-database-ca"),
    ]
    assert [rule["verbs"] for rule in rules] == [["get", "patch"]] * 2
    for kind, name in (("Secret", "queuectl-database-tls"), ("ConfigMap", "queuectl-database-ca")):
        assert "data" not in found[kind, name], "it would change at each rendering"


def test_queues_are_proposed_if_asked_and_only_to_the_database() -> None:
    def variables(configuration: Mapping[str, Any]) -> dict[str, Any]:
        [container] = pod({**IMAGE, "configuration": configuration})["containers"]
        return {one["name"]: one.get("value") for one in container["env"]}

    assert "QUEUECTL_PROPOSE_FOR" not in variables({})
    asked = {"proposeFor": ["default", "team-a"]}
    assert variables(asked)["QUEUECTL_PROPOSE_FOR"] == "default,team-a"
    for values, message in (
        ({"configuration": {**asked, "owner": "kueue"}}, "and this is kueue"),
        ({"configuration": {**asked, "owner": "kubernetes"}}, "output of queuectl init"),
        ({"configuration": asked, "shadow": True}, "exclude each other"),
        ({"configuration": {"proposeFor": ["a,b"]}}, "proposeFor"),
    ):
        with pytest.raises(ValueError, match=message):
            documents({**IMAGE, **values})


def test_the_pods_verify_the_bundled_database() -> None:
    shown = pod(IMAGE)
    [volume] = [one for one in shown["volumes"] if one["name"] == "database"]
    assert volume["configMap"] == {"name": "queuectl-database-ca"}
    for container in (*shown["initContainers"], *shown["containers"]):
        [mount] = [one for one in container["volumeMounts"] if one["name"] == "database"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        authority = f"{mount['mountPath']}/ca.crt"
        assert (env["PGSSLMODE"], env["PGSSLROOTCERT"]) == ("verify-full", authority)


def test_without_a_storage_class_the_data_is_in_an_empty_dir() -> None:
    values = {**IMAGE, "database": {"bundled": {"persistent": False, "size": "2Gi"}}}
    server = by_name(documents(values))["StatefulSet", "queuectl-database"]["spec"]
    assert "volumeClaimTemplates" not in server
    volumes = {one["name"]: one for one in server["template"]["spec"]["volumes"]}
    assert volumes["data"] == {"name": "data", "emptyDir": {"sizeLimit": "2Gi"}}


def test_the_claim_has_the_chosen_class_and_size() -> None:
    values = {**IMAGE, "database": {"bundled": {"storageClassName": "fast", "size": "2Gi"}}}
    server = by_name(documents(values))["StatefulSet", "queuectl-database"]["spec"]
    [claim] = server["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "2Gi"}}
    assert "storageClassName" not in str(
        by_name(documents(IMAGE))["StatefulSet", "queuectl-database"]
    )


def test_with_a_database_of_ones_own_the_chart_has_none_and_the_migration_checks_the_claim() -> (
    None
):
    found = by_name(documents(OWN_DATABASE))
    assert not [name for name in found if "database" in name[1]]
    claim = "--bundled-claim=data-queuectl-database-0"
    assert migration(OWN_DATABASE)["args"] == ["db", "upgrade", "--pre", claim]
    empty = {**IMAGE, "database": {"secretName": "other", "startEmpty": True}}
    assert migration(empty)["args"][-1] == "--start-empty"
    assert migration(IMAGE)["args"] == ["db", "upgrade", "--pre", "--grant"]
    named = {"name": "queuectl-bundled-database", "key": "migration-url"}
    assert {"secretKeyRef": named} in [one.get("valueFrom") for one in migration(IMAGE)["env"]]


@pytest.mark.parametrize("shadow", [False, True])
def test_the_migration_may_get_the_claim_that_it_checks(shadow: bool) -> None:
    found = documents({**OWN_DATABASE, "shadow": shadow})
    [claim] = [
        one for one in migration({**OWN_DATABASE, "shadow": shadow})["args"] if "claim" in one
    ]
    named = {
        name
        for role in of_kind(found, "Role")
        for rule in role["rules"]
        if rule["resources"] == ["persistentvolumeclaims"] and rule["verbs"] == ["get"]
        for name in rule["resourceNames"]
    }
    assert claim == f"--bundled-claim={''.join(named)}"


def migration(values: Mapping[str, Any]) -> Any:
    [container] = pod(values)["initContainers"]
    return container


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, {"Secret", "ConfigMap"}),
        ({"secretName": "mine"}, set()),
        ({"issuerRef": {"kind": "ClusterIssuer", "name": "internal"}}, {"Certificate"}),
    ],
)
def test_the_certificate_is_made_by_queuectl_by_cert_manager_or_by_the_user(
    values: Mapping[str, Any], kinds: set[str]
) -> None:
    chosen = {**IMAGE, "tls": values}
    found = documents(chosen)
    made = {
        one["kind"] for one in found if one["metadata"]["name"] in ("queuectl-tls", "queuectl-ca")
    }
    assert made - {"Role", "RoleBinding"} == kinds
    assert ("Role" in made) == (not values)
    [volume] = [one for one in pod(chosen)["volumes"] if one["name"] == "tls"]
    secret = volume.get("secret", {}).get("secretName")
    assert secret == (values.get("secretName", "queuectl-tls") if values else None)
    names = {one["name"] for one in pod(chosen)["containers"][0]["env"]}
    assert ("QUEUECTL_TLS_SECRET" in names) == (not values)


def test_the_certificate_has_the_names_of_the_service_and_those_of_the_user() -> None:
    hosts = ["queues.example.com", "192.0.2.7", "2001:db8::1"]
    [given] = [
        one["value"]
        for one in pod({**IMAGE, "tls": {"hosts": hosts}})["containers"][0]["env"]
        if one["name"] == "QUEUECTL_TLS_HOSTS"
    ]
    assert list(server_names(given))[:1] == ["queuectl.queuectl-system.svc"]
    assert list(server_names(given))[-3:] == hosts
    tls = {"issuerRef": {"name": "internal"}, "hosts": hosts}
    [made] = of_kind(documents({**IMAGE, "tls": tls}), "Certificate")
    assert made["spec"]["dnsNames"][-1] == "queues.example.com"
    assert made["spec"]["ipAddresses"] == ["127.0.0.1", *hosts[1:]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tls": {"secretName": "a", "issuerRef": {"name": "b"}}}, "exclude each other"),
        ({"database": {"sslMode": "require"}}, "database.sslMode is for your own database"),
        ({"database": {"startEmpty": True}}, "database.startEmpty is for your own database"),
        ({"visibility": {"enabled": True}, "replicas": 1}, "visibility.enabled needs replicas: 2"),
        ({"visibility": {"enabled": True}, "shadow": True}, "exclude each other"),
        ({"configuration": {"owner": "kubernetes"}, "shadow": True}, "exclude each other"),
        ({"kueueKeys": {"enabled": True, "kueueRuns": True}}, "kueueRuns exclude each other"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        documents({**IMAGE, **values})


@pytest.mark.parametrize("pattern", ["(", "a'", r"nvidia\.com/gpu"])
def test_an_expression_for_gpus_that_the_api_server_cannot_read_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="'/queuedGpus/resources'"):
        documents({**IMAGE, "queuedGpus": {"enabled": True, "resources": pattern}})


def test_administrators_use_the_pods_unless_it_is_switched_off() -> None:
    [binding] = [
        one
        for one in of_kind(documents(IMAGE), "ClusterRoleBinding")
        if one["metadata"]["name"] == "queuectl-admin-in-pod"
    ]
    assert binding["roleRef"]["name"] == "queuectl-platform-admin"
    without = documents({**IMAGE, "adminInPod": False})
    assert "queuectl-admin-in-pod" not in str(without)
    assert "QUEUECTL_TOKEN_FILE" not in str(without)


def test_the_aggregated_api_has_its_objects_and_rights_only_if_it_is_enabled() -> None:
    found = by_name(documents({**IMAGE, "visibility": {"enabled": True}}))
    names = {key for key in found if "visibility" in key[1]}
    assert names == {
        ("APIService", "v1.visibility.queuectl.dev"),
        ("NetworkPolicy", "queuectl-visibility"),
        ("Service", "queuectl-visibility"),
        ("Secret", "queuectl-visibility"),
        ("Role", "queuectl-visibility"),
        ("RoleBinding", "queuectl-visibility"),
        ("ClusterRole", "queuectl-visibility"),
        ("ClusterRole", "queuectl-visibility-view"),
        ("ClusterRoleBinding", "queuectl-visibility"),
    }
    assert found["PodDisruptionBudget", "queuectl"]["spec"]["maxUnavailable"] == 1
    assert found["Service", "queuectl-visibility"]["spec"]["publishNotReadyAddresses"] is True
    service = found["Service", "queuectl-visibility"]["spec"]["ports"][0]["targetPort"]
    [container] = found["Deployment", "queuectl"]["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["QUEUECTL_VISIBILITY_LISTEN"] == f"0.0.0.0:{ports[service]}"
    default = documents(IMAGE)
    assert not [one for one in default if "visibility" in one["metadata"]["name"]]


def test_queuectl_reads_logs_of_pods_only_if_that_is_enabled() -> None:
    def granted(values: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether it has the right, and whether it uses it."""
        found = documents({**IMAGE, **values})
        rules = [rule for role in of_kind(found, "ClusterRole") for rule in role.get("rules") or ()]
        names = [variable["name"] for variable in pod({**IMAGE, **values})["containers"][0]["env"]]
        used = "QUEUECTL_POD_LOGS" in names
        return any("pods/log" in rule.get("resources", ()) for rule in rules), used

    enabled = {"podLogs": {"enabled": True}}
    assert granted({}) == (False, False)
    assert granted(enabled) == (True, True)
    assert granted({**enabled, "shadow": True}) == (False, False)


DIGITS: Final = "0777"
"""A name of Kubernetes that YAML reads as a number."""
NAMES: Final = {"name", "namespace", "secretName", "storageClassName", "priorityClassName"}


@pytest.mark.parametrize(
    "values",
    [
        {**ALL, "database": {**ALL["database"], "secretName": DIGITS, "caSecretName": DIGITS}, "tls": {"secretName": DIGITS}, "priorityClassName": DIGITS},
        {**ALL, **WEBHOOK, "database": {"bundled": {"storageClassName": DIGITS}}, "priorityClassName": DIGITS},
        {**RECEIVERS, "visibility": {"enabled": True}, "notifications": {**RECEIVERS["notifications"], "credentialsSecret": DIGITS}, "tls": {"issuerRef": {"name": DIGITS}}},
    ],
    ids=["own database", "bundled database", "notifications"],
)  # fmt: skip
def test_a_name_of_digits_stays_text(values: Mapping[str, Any]) -> None:
    def wrong(node: Any, key: str) -> Iterator[str]:
        if isinstance(node, list):
            for part in node:
                yield from wrong(part, key)
        elif isinstance(node, dict):
            for inner, part in node.items():
                yield from wrong(part, inner)
        elif key in NAMES and not isinstance(node, str):
            yield f"{key}: {node}"

    found = documents(values, namespace=DIGITS)
    assert f"'{DIGITS}'" in str(found)
    assert not list(wrong(found, ""))
