"""Prepares a cluster for an operator: its user, its CRDs, its role and its webhooks."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING, Any

import yaml

from queuectl.localcluster import build, layout
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import START_SECONDS, wait_until
from queuectl.localcluster.operators import settings_file, webhook_certificates
from queuectl.localcluster.yaml_files import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from queuectl.localcluster.client import Client, Document
    from queuectl.localcluster.layout import Layout
    from queuectl.localcluster.operators import Operator

_TOKEN_SECONDS = 365 * 24 * 3600  # longer than any local cluster runs
_CRDS = "crds/"
_WEBHOOKS = "webhooks.yaml"


def prepare(home: Layout, operators: Iterable[Operator]) -> Layout:
    """Write the certificate and the configuration files of operators, and reserve their ports.

    Args:
        home: The cluster.
        operators: The operators to start later, which are built.

    Returns:
        The cluster with their ports, command lines and health checks.
    """
    serving = webhook_certificates(home)
    if not serving.exists():
        serving.mkdir(parents=True)
        authority = Authority.load(home.pki / "ca.crt", home.pki / "ca.key")
        authority.server("operators").save(serving / "tls.crt", serving / "tls.key")
    for operator in operators:
        home = layout.reserve(home, (operator.name, operator.webhook_port))
        if operator.settings is not None:
            settings_file(home, operator.name).write_text(
                yaml.safe_dump(dict(operator.settings(home)))
            )
        component = operator.component(home)
        settings = [f"{name}={value}" for name, value in operator.environment(home).items()]
        program = str(build.cached(operator.unit).programs[operator.name])
        command = [
            *(["/usr/bin/env", *settings] if settings else []),
            program,
            *component.arguments,
        ]
        known = home.description
        home = home.write(
            commands=known["commands"] | {operator.name: command},
            health=known["health"] | {operator.name: component.health},
        )
    return home


def apply(home: Layout, client: Client, operator: Operator) -> None:
    """Create the objects and the kubeconfig of an operator, and wait until its kinds are served.

    Args:
        home: The cluster, prepared for the operator.
        client: A client with all rights.
        operator: The operator, which is built.

    Raises:
        LocalClusterError: The kinds are not served in time.
    """
    files = build.cached(operator.unit).files
    crds = [one for name in files if name.startswith(_CRDS) for one in objects(files[name])]
    client.apply(*crds, *_rights(operator, files["rbac/role.yaml"]))
    authority = (home.pki / "ca.crt").read_bytes()
    layout.write_kubeconfig(
        home.kubeconfig(operator.name),
        cluster=home.name,
        server=home.server,
        authority=authority,
        user=operator.user,
        identity=_token(client, operator),
    )
    for crd in crds:
        _wait_served(client, crd)
    if _WEBHOOKS in files:
        kinds = {one["spec"]["names"]["plural"] for one in crds}
        url = home.url(operator.webhook_port)
        client.apply(*webhooks(operator, files[_WEBHOOKS], kinds, url, authority))


def wait_webhooks(home: Layout, operator: Operator) -> None:
    """Wait until the webhook server of an operator listens. Some operators are healthy before.

    Raises:
        LocalClusterError: It does not listen in time.
    """
    if _WEBHOOKS in operator.unit.files:
        address = (layout.LOOPBACK, home.ports[operator.webhook_port])

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(address) == 0

        wait_until(listens, f"the webhooks of {operator.name}", START_SECONDS)


def webhooks(
    operator: Operator, manifests: Path, kinds: Iterable[str], url: str, authority: bytes
) -> Iterator[Document]:
    """The webhook configurations of an operator, for its webhook server on loopback.

    Args:
        operator: The operator.
        manifests: Its webhook configurations, which name a Service.
        kinds: Plural names of its kinds. Webhooks on other kinds, except on pods, are left out.
        url: URL of its webhook server.
        authority: The CA of that server, as PEM.
    """
    bundle = base64.b64encode(authority).decode()
    for document in objects(manifests):
        served = []
        for hook in document["webhooks"]:
            resources = {name for rule in hook["rules"] for name in rule["resources"]}
            if not resources <= {*kinds, "pods"}:
                continue
            path = hook["clientConfig"]["service"]["path"]
            client = {"url": url + path, "caBundle": bundle}
            served.append(hook | {"clientConfig": client} | _selector(operator, resources))
        if served:
            kind = document["kind"].removesuffix("WebhookConfiguration").lower()
            metadata = {"name": f"{operator.name}-{kind}"}
            yield document | {"metadata": metadata, "webhooks": served}


def _selector(operator: Operator, resources: set[str]) -> dict[str, Any]:
    if "pods" not in resources or not operator.pod_label:
        return {}
    return {
        "objectSelector": {"matchExpressions": [{"key": operator.pod_label, "operator": "Exists"}]}
    }


def _rights(operator: Operator, role: Path) -> list[Document]:
    """Its namespace, its ServiceAccount, and its role bound to that."""
    granted = next(one for one in objects(role) if one["kind"] == "ClusterRole")
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": operator.account, "namespace": operator.namespace},
        },
        granted | {"metadata": {"name": operator.name}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": operator.name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": operator.name},
            "subjects": [
                {
                    "kind": "ServiceAccount",
                    "name": operator.account,
                    "namespace": operator.namespace,
                }
            ],
        },
    ]


def _token(client: Client, operator: Operator) -> str:
    """A token of its ServiceAccount. A client certificate has at most 64 characters for a user, which are too few for some."""
    path = f"/api/v1/namespaces/{operator.namespace}/serviceaccounts/{operator.account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    made = client.create(path, request | {"spec": {"expirationSeconds": _TOKEN_SECONDS}})
    token: str = made["status"]["token"]
    return token


def _wait_served(client: Client, crd: Document) -> None:
    name, group = crd["metadata"]["name"], crd["spec"]["group"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"

    def established() -> bool:
        conditions = client.get(path).get("status", {}).get("conditions") or []
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    wait_until(established, f"the CRD {name}", START_SECONDS)
    # An admission policy with parameters of a kind that discovery does not have fails for 30 s.
    wait_until(lambda: client.discovers(group), f"discovery of {group}", START_SECONDS)
