"""deploy/ is one consistent set: names, identity, rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from queuectl.api.auth.start import offer
from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import deploy_folder, manifests, opt_ins, optional
from queuectl.cluster.review import FOR_ALL, protecting
from queuectl.control.settings import settings_names
from queuectl.domain.commands import Action
from queuectl.domain.identity import API_GROUP
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.makers import MAKERS
from tests.support.chart import defaults

CONTROLLER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:queuectl"
JOB_CONTROLLERS = (
    "system:serviceaccount:kube-system:job-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    *(
        f"system:serviceaccount:{defaults()[one]['namespace']}:{defaults()[one]['serviceAccount']}"
        for one in {kind.operator for kind in DESCRIPTIONS}
    ),
    *(
        f"system:serviceaccount:kube-system:{maker.created.controller}"
        for maker in MAKERS
        if maker.created is not None and maker.created.controller
    ),
)
DOCUMENTS = manifests()
VERBS = ("resume", "stop")
"""The actions on a queue other than a change of its document."""
VALIDATING = [one for one in DOCUMENTS if one["kind"] == "ValidatingAdmissionPolicy"]
RESTRICTING = {
    "queuectl-namespaces",
    *(f"queuectl-controller-{kind.plural}" for kind in KINDS.values()),
}
"""Objects that queuectl's own identity can change."""
PROTECTED = [one for one in VALIDATING if one["metadata"]["name"] not in {*RESTRICTING, *FOR_ALL}]
MUTATING = [one for one in DOCUMENTS if one["kind"] == "MutatingAdmissionPolicy"]


def named(kind: str, name: str) -> Any:
    [found] = [d for d in DOCUMENTS if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def texts(kind: str) -> str:
    return "\n".join(str(one) for one in DOCUMENTS if one["kind"] == kind)


def test_every_policy_has_a_binding_that_acts() -> None:
    for policies, binding in (
        (VALIDATING, "ValidatingAdmissionPolicyBinding"),
        (MUTATING, "MutatingAdmissionPolicyBinding"),
    ):
        bound = {d["spec"]["policyName"] for d in DOCUMENTS if d["kind"] == binding}
        assert bound == {policy["metadata"]["name"] for policy in policies}
    for one in DOCUMENTS:
        if one["kind"] == "ValidatingAdmissionPolicyBinding":
            assert one["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize(
    "policy", [*MUTATING, *VALIDATING], ids=lambda p: p["kind"][:1] + p["metadata"]["name"]
)
def test_a_policy_that_cannot_be_evaluated_refuses(policy: Any) -> None:
    assert policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("policy", MUTATING, ids=lambda p: p["metadata"]["name"])
def test_no_mutating_policy_copies_a_map_of_the_object(policy: Any) -> None:
    """After a match condition, the API server of 1.37 cannot write one (`make test-versions`)."""
    for mutation in policy["spec"]["mutations"]:
        assert "orValue({})" not in mutation["jsonPatch"]["expression"]


def test_the_policies_are_those_that_the_review_checks_and_can_read() -> None:
    assert {policy["metadata"]["name"] for policy in PROTECTED} == set(protecting())
    role = named("ClusterRole", "queuectl")
    [rule] = [r for r in role["rules"] if "validatingadmissionpolicies" in r["resources"]]
    assert set(rule["resourceNames"]) == {*protecting(), *FOR_ALL}
    assert {policy["metadata"]["name"] for policy in VALIDATING} >= {*protecting(), *FOR_ALL}


@pytest.mark.parametrize("policy", PROTECTED, ids=lambda p: p["metadata"]["name"])
def test_every_protecting_policy_names_the_same_identity(policy: Any) -> None:
    conditions = {one["name"]: one["expression"] for one in policy["spec"]["matchConditions"]}
    assert f"request.userInfo.username != '{CONTROLLER}'" in conditions["not-an-update-by-queuectl"]
    accounts = set(re.findall(r"system:serviceaccount:[a-z:-]+", str(policy)))
    assert accounts <= {CONTROLLER, *JOB_CONTROLLERS}


def test_the_identity_is_the_account_that_is_made_and_that_the_deployment_runs_as() -> None:
    account = named("ServiceAccount", "queuectl")["metadata"]
    deployment = named("Deployment", "queuectl")
    pod = deployment["spec"]["template"]["spec"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" == CONTROLLER
    assert pod["serviceAccountName"] == account["name"]
    assert deployment["metadata"]["namespace"] == account["namespace"]
    for binding in ("ClusterRoleBinding", "RoleBinding"):
        assert named(binding, "queuectl")["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.kind)
def test_every_kind_is_watched_patched_mutated_and_protected(kind: Any) -> None:
    rules = named("ClusterRole", "queuectl")["rules"]
    [rule] = [r for r in rules if kind.plural in r["resources"]]
    assert rule["apiGroups"] == [kind.group]
    assert set(rule["verbs"]) == {"get", "list", "watch", "patch"}
    for policies in (MUTATING, VALIDATING):
        matched = [
            (m["apiGroups"], m["apiVersions"])
            for p in policies
            for m in p["spec"]["matchConstraints"]["resourceRules"]
            if kind.plural in m["resources"]
        ]
        # It is queued, and gets the default queue. A JobSet is gated with its own label, or as that of a TrainJob.
        mutated = 2 + (kind.kind == "JobSet")
        wrapped = bool(kind.kind == "Job" or kind.description.podsets)  # also as a component
        # what others may do to them with and without a queue, how they are deleted, and what queuectl may
        expected = mutated if policies is MUTATING else 4 + wrapped
        assert matched == [([kind.group], [kind.version])] * expected


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.kind)
def test_every_policy_of_a_kind_is_bound_by_each_label(kind: Any) -> None:
    """By both in the same way, so that Kueue's can be left out; and by the namespace where no label is there."""
    documents = [*DOCUMENTS, *optional("kueue-keys")]
    for binding in ("MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding"):
        for suffix, key in (
            ("", keys.QUEUE_LABEL),
            ("-kueue", keys.KUEUE_PREFIX + keys.QUEUE_NAME),
        ):
            name = f"queuectl-{kind.plural}{suffix}"
            [spec] = [
                d["spec"]
                for d in documents
                if (d["kind"], d["metadata"]["name"]) == (binding, name)
            ]
            assert spec["policyName"] == f"queuectl-{kind.plural}"
            selected = [{"key": key, "operator": "Exists"}]
            assert spec["matchResources"] == {"objectSelector": {"matchExpressions": selected}}
    default = named("MutatingAdmissionPolicyBinding", f"queuectl-{kind.plural}-default")["spec"]
    selector = default["matchResources"]["namespaceSelector"]
    assert selector == {"matchLabels": {keys.DEFAULT_QUEUE_LABEL: "true"}}


def test_what_queuectl_may_do_to_namespaces_is_one_label() -> None:
    policy = named("ValidatingAdmissionPolicy", "queuectl-namespaces")
    [rule] = policy["spec"]["validations"]
    assert set(re.findall(r"key == '([^']+)'", rule["expression"])) == {keys.DEFAULT_QUEUE_LABEL}


@pytest.mark.parametrize("name", sorted(RESTRICTING))
def test_a_policy_that_restricts_queuectl_names_it(name: str) -> None:
    """The API server evaluates all match conditions, also after a false one. Other accounts pay for no loop over an object."""
    first, *others = named("ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
    assert first["expression"].startswith(f"request.userInfo.username == '{CONTROLLER}'")
    assert not [one["name"] for one in others if ".all(" in one["expression"]]


@pytest.mark.parametrize("name", opt_ins())
def test_an_opt_in_is_not_part_of_the_base(name: str) -> None:
    whole = {(one["kind"], one["metadata"]["name"]) for one in DOCUMENTS}
    chosen = {(one["kind"], one["metadata"]["name"]) for one in optional(name)}
    assert chosen
    assert not whole & chosen


def test_the_words_of_the_policies_are_those_of_the_code() -> None:
    mutating, validating = texts("MutatingAdmissionPolicy"), texts("ValidatingAdmissionPolicy")
    for word in (keys.GATE, keys.QUEUE_LABEL, keys.KUEUE_PREFIX + keys.QUEUE_NAME):
        assert word in mutating
        assert word in validating
    for word in (
        keys.PODSET_LABEL,
        keys.ATTEMPT_LABEL,
        keys.ORIGINAL_PRIORITY_CLASS,
        keys.SUBMITTED_BY,
    ):
        assert word in mutating


def test_the_managed_class_never_preempts() -> None:
    one = named("PriorityClass", keys.POD_PRIORITY_CLASS)
    expected = (keys.POD_PRIORITY, "Never", False)
    assert (one["value"], one["preemptionPolicy"], one["globalDefault"]) == expected
    classes = re.findall(
        r"priorityClassName',(?:\\n|\s)+value: '([^']+)'", texts("MutatingAdmissionPolicy")
    )
    # Nothing inside an AppWrapper changes. Of a SparkApplication, both podsets and their pods are marked.
    marked = [*KINDS.keys() - {"AppWrapper"}, "executors", "pods of SparkApplications", "Pod"]
    assert classes == [keys.POD_PRIORITY_CLASS] * len(marked)


def test_nothing_wide_is_granted() -> None:
    for role in ("ClusterRole", "Role"):
        for rule in named(role, "queuectl")["rules"]:
            for part in ("apiGroups", "resources", "verbs"):
                assert "*" not in rule[part]
            if "delete" in rule["verbs"]:
                assert rule["resources"] == ["pods"], "the policy of the controller limits it"
            assert not {
                "deletecollection",
                "update",
                "escalate",
                "bind",
                "impersonate",
            } & set(rule["verbs"])
            assert "secrets" not in rule["resources"]
            if "admissionregistration.k8s.io" in rule["apiGroups"]:
                assert rule["verbs"] == ["get"], "it cannot change its own policies"


ROLES = [f"queuectl-{name}" for name in ("viewer", "submitter", "team-admin", "platform-admin")]


def rights(role: str) -> set[tuple[str, str]]:
    """Verb and resource."""
    rules = named("ClusterRole", role)["rules"]
    assert all(rule["apiGroups"] == [API_GROUP] for rule in rules)
    return {
        (verb, resource)
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_role_for_users_lists_each_right(role: str) -> None:
    assert not any("*" in right for pair in rights(role) for right in pair)


def test_each_role_for_people_grants_what_the_smaller_one_does() -> None:
    viewer, submitter, team, platform = map(rights, ROLES)
    assert submitter < team < platform
    assert viewer < platform


def test_the_platform_admin_has_every_action_and_can_write_every_kind() -> None:
    granted = rights("queuectl-platform-admin")
    stops = {f"{kind}/{verb}" for kind in ("clusterqueues", "localqueues") for verb in VERBS}
    others = {"budgets/topups", "configurationowner/confirm", "receivers/test"}
    assert {f"workloads/{action}" for action in Action} | stops | others == {
        resource for verb, resource in granted if verb == "create" and "/" in resource
    }
    for kind in CONFIG_KINDS:
        for verb in ("get", "list", "update", "patch", "delete"):
            assert (verb, kind.plural) in granted


def test_a_team_admin_stops_local_queues_and_no_cluster_queue() -> None:
    granted = rights("queuectl-team-admin")
    for verb in VERBS:
        assert ("create", f"localqueues/{verb}") in granted
        assert ("create", f"clusterqueues/{verb}") not in granted
        assert ("create", f"localqueues/{verb}") not in rights("queuectl-submitter")


def test_only_the_platform_admin_rules_quota_and_reads_the_audit_log() -> None:
    for role in ROLES[:-1]:
        written = {
            resource for verb, resource in rights(role) if verb not in ("get", "list", "watch")
        }
        assert not written & {"clusterqueues", "cohorts", "configurations", "priorityclasses"}
        assert ("get", "audit") not in rights(role)


def test_what_acts_on_one_namespace_alone_is_part_of_the_roles_that_kubernetes_brings() -> None:
    aggregated = {
        role: label.removeprefix("rbac.authorization.k8s.io/aggregate-to-")
        for role in ROLES
        for label in named("ClusterRole", role)["metadata"]["labels"]
        if label.startswith("rbac.authorization.k8s.io/aggregate-to-")
    }
    assert aggregated == dict(zip(ROLES[:2], ["view", "edit"], strict=True))


def test_the_api_is_served_by_tls_to_callers_who_are_known() -> None:
    pod = named("Deployment", "queuectl")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    offered = offer(
        env["QUEUECTL_LISTEN"],
        auth=env.get("QUEUECTL_AUTH"),
        cert_file=Path(env["QUEUECTL_TLS_CERT_FILE"]),
        key_file=Path(env["QUEUECTL_TLS_KEY_FILE"]),
        tls=True,
    )
    assert offered.authenticated
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "tls"]
    assert offered.certificate is not None
    assert {offered.certificate.chain.parent, offered.certificate.key.parent} == {
        Path(mount["mountPath"])
    }
    [port] = [p for p in container["ports"] if p["name"] == "https"]
    assert port["containerPort"] == offered.address.port
    [served] = named("Service", "queuectl")["spec"]["ports"]
    assert served["targetPort"] == port["name"]


def test_the_controller_can_authenticate_and_authorize_users() -> None:
    rules = named("ClusterRole", "queuectl")["rules"]
    reviews = {r["resources"][0]: r["verbs"] for r in rules if "reviews" in r["resources"][0]}
    assert reviews == {"tokenreviews": ["create"], "subjectaccessreviews": ["create"]}


def test_the_controller_runs_with_as_little_as_it_can() -> None:
    pod = named("Deployment", "queuectl")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_kubelet_probes_its_own_port() -> None:
    [container] = named("Deployment", "queuectl")["spec"]["template"]["spec"]["containers"]
    probes = {probe: container[f"{probe}Probe"] for probe in ("liveness", "readiness", "startup")}
    assert {probe: given["httpGet"] for probe, given in probes.items()} == {
        "liveness": {"path": "/healthz", "port": "health"},
        "readiness": {"path": "/readyz", "port": "health"},
        "startup": {"path": "/healthz", "port": "health"},
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = {env["name"]: env.get("value") for env in container["env"]}
    assert settings["QUEUECTL_HEALTH_LISTEN"] == f"0.0.0.0:{ports['health']}"


def test_the_migration_the_leader_and_the_api_each_have_their_own_database_url() -> None:
    pod = named("Deployment", "queuectl")["spec"]["template"]["spec"]
    ([migrate], [serve]) = pod["initContainers"], pod["containers"]
    urls = [
        {
            env["name"]: env["valueFrom"]["secretKeyRef"]["key"]
            for env in container["env"]
            if "secretKeyRef" in env.get("valueFrom", {})
        }
        for container in (migrate, serve)
    ]
    assert urls == [
        {"QUEUECTL_DATABASE_URL": "migration-url"},
        {"QUEUECTL_DATABASE_URL": "url", "QUEUECTL_API_DATABASE_URL": "api-url"},
    ]


def test_the_controller_shares_nothing_with_its_node() -> None:
    pod = named("Deployment", "queuectl")["spec"]["template"]["spec"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"emptyDir"}
    space = named("Namespace", "queuectl-system")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_network_policy_selects_the_pods_and_limits_their_metrics_port() -> None:
    policy = named("NetworkPolicy", "queuectl")
    deployment = named("Deployment", "queuectl")
    assert policy["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    template = deployment["spec"]["template"]
    budget = named("PodDisruptionBudget", "queuectl")["spec"]
    for selector in (policy["spec"]["podSelector"], budget["selector"]):
        assert selector["matchLabels"] == template["metadata"]["labels"]
    rules = {
        port["port"]: rule.get("from")
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    }
    [container] = template["spec"]["containers"]
    reachable = {port["name"] for port in container["ports"]} - {"health"}
    assert rules.keys() == reachable, "the kubelet alone reaches the health port"
    assert rules["https"] is None
    assert rules["metrics"]


def test_the_network_policies_permit_the_port_of_each_service() -> None:
    documents = [*DOCUMENTS, *(one for name in opt_ins() for one in optional(name))]
    policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    services = [one["spec"] for one in documents if one["kind"] == "Service"]
    assert services
    for service in services:
        reachable = {
            port["port"]
            for policy in policies
            if policy["podSelector"]["matchLabels"] == service["selector"]
            for rule in policy["ingress"]
            for port in rule["ports"]
        }
        assert {port["targetPort"] for port in service["ports"]} <= reachable


def test_migrations_run_where_no_probe_ends_them_and_leave_the_rest_for_later() -> None:
    pod = named("Deployment", "queuectl")["spec"]["template"]["spec"]
    [container], [migrate] = pod["containers"], pod["initContainers"]
    claim = "--bundled-claim=data-queuectl-database-0"
    assert migrate["args"] == ["db", "upgrade", "--pre", claim]
    assert not [probe for probe in migrate if probe.endswith("Probe")]
    assert migrate["image"] == container["image"]
    assert migrate["securityContext"] == container["securityContext"]


def test_environment_variables_are_settings_that_exist() -> None:
    [container] = named("Deployment", "queuectl")["spec"]["template"]["spec"]["containers"]
    for one in container["env"]:
        assert one["name"] in settings_names()
    for path in (deploy_folder() / "base").glob("*.yaml"):  # in comments too
        assert set(re.findall(r"QUEUECTL_[A-Z_]+", path.read_text())) <= settings_names()
    assert (
        named("Deployment", "queuectl")["spec"]["template"]["spec"]["enableServiceLinks"] is False
    )


def test_without_the_controller_only_the_workloads_are_left_out() -> None:
    kinds = [one["kind"] for one in manifests(controller=False)]
    of_pods = {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"}
    assert set(kinds) == {one["kind"] for one in DOCUMENTS} - of_pods
    assert kinds[0] == "Namespace"


def test_the_folder_is_that_of_the_checkout() -> None:
    assert deploy_folder() == Path(__file__).parents[2] / "deploy"
