"""Compares the rights that deploy/ grants to ServiceAccounts with the requests in audit logs of API servers.

``QUEUECTL_AUDIT_LOGS=DIR make test-system test-gpus test-kinds test-operations`` writes the logs; ``python -m tests.system.rights_used DIR`` prints the comparison as
Markdown, and fails if a right is not used or a request was allowed by a right that deploy/ does not grant.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import Document, manifests, opt_ins, optional

OF_KUBERNETES: Final = {("Role", "kube-system", "extension-apiserver-authentication-reader")}
"""Roles that Kubernetes creates; they are not in the documents."""
_PREFIX: Final = "system:serviceaccount:"
_EVERY_ACCOUNT: Final = 'to Group "system:authenticated"'
_DECISION: Final = "authorization.k8s.io/decision"
_REASON: Final = "authorization.k8s.io/reason"


class Right(NamedTuple):
    """A right of a ServiceAccount; an empty namespace is the whole cluster, an empty name every object.

    Attributes:
        account: namespace:name of the ServiceAccount.
        group: the API group, empty for the core group.
        resource: with its subresource, as RBAC writes it: ``pods/status``.
        verb: as RBAC writes it.
    """

    account: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def covers(self, use: Right) -> bool:
        """Whether a request that names this namespace and this object needs no other right."""
        return (
            self[:4] == use[:4]
            and self.namespace in ("", use.namespace)
            and self.name in ("", use.name)
        )

    def cells(self) -> tuple[str, ...]:
        """As a row of a table: verb, resource, object, where, account."""
        where = f"namespace {self.namespace}" if self.namespace else "cluster"
        resource = f"{self.resource} ({self.group or 'core'})"
        return self.verb, resource, self.name or "all", where, self.account


@dataclass
class Requests:
    """Requests for resources in audit logs, counted by the right that each needs.

    Attributes:
        allowed: how many RBAC let through; the API server can refuse them later, for example by a policy.
        succeeded: how many of these were answered without an error.
        refused: how many RBAC refused.
    """

    allowed: Counter[Right] = field(default_factory=Counter)
    succeeded: Counter[Right] = field(default_factory=Counter)
    refused: Counter[Right] = field(default_factory=Counter)

    def add(self, event: Mapping[str, Any]) -> None:
        """Count one event of an audit log, if it is of queuectl.

        Requests without a resource, such as discovery, and requests that Kubernetes allows to every account are not counted.
        """
        reference = event.get("objectRef")
        notes = event.get("annotations", {})
        account = event["user"]["username"].removeprefix(_PREFIX)
        # A watch has two events; the second is missing where the API server ended first.
        stage = "ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"
        if not account.startswith(f"{SYSTEM_NAMESPACE}:"):
            return
        if reference is None or event["stage"] != stage or _EVERY_ACCOUNT in notes.get(_REASON, ""):
            return
        resource = "/".join(
            reference[part] for part in ("resource", "subresource") if part in reference
        )
        right = Right(
            account,
            reference.get("apiGroup", ""),
            resource,
            event["verb"],
            reference.get("namespace", ""),
            reference.get("name", ""),
        )
        code = event.get("responseStatus", {}).get("code", 0)
        if notes.get(_DECISION) == "forbid":
            self.refused[right] += 1
        else:
            self.allowed[right] += 1
            self.succeeded[right] += code < 400


@dataclass(frozen=True)
class Comparison:
    """Rights on the one hand, requests on the other.

    Attributes:
        used: how many requests used each granted right, and how many of these succeeded.
        unused: granted, and no request used it.
        ungranted: allowed by RBAC, and not granted by deploy/: something else grants it to the account.
        refused: how many requests of each kind RBAC refused, namespaces and names left out.
        early: the same for requests that a right of deploy/ covers: before an opt-in is applied, and before an API server has read its
            roles after its start.
    """

    used: dict[Right, tuple[int, int]]
    unused: tuple[Right, ...]
    ungranted: Counter[Right]
    refused: Counter[Right]
    early: Counter[Right]


def compare(rights: Iterable[Right], requests: Requests) -> Comparison:
    """The rights that the requests used, and the requests that needed other rights."""
    granted = sorted(set(rights))
    used = {}
    for right in granted:
        own = [use for use in requests.allowed if right.covers(use)]
        if own:
            count, succeeded = (
                sum(counts[use] for use in own) for counts in (requests.allowed, requests.succeeded)
            )
            used[right] = count, succeeded
    uses = requests.allowed.keys() | requests.refused.keys()
    covered = {use for use in uses if any(right.covers(use) for right in granted)}
    return Comparison(
        used,
        tuple(right for right in granted if right not in used),
        ungranted=_kinds(requests.allowed, uses - covered),
        refused=_kinds(requests.refused, uses - covered),
        early=_kinds(requests.refused, covered),
    )


def _kinds(counts: Counter[Right], of: AbstractSet[Right]) -> Counter[Right]:
    kinds: Counter[Right] = Counter()
    for right in of & counts.keys():
        kinds[right._replace(namespace="", name="")] += counts[right]
    return kinds


def granted_rights(documents: Iterable[Document]) -> Iterator[Right]:
    """The rights that the bindings among these documents give to ServiceAccounts, one for each verb, resource and name."""
    documents = list(documents)
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in documents
        if one["kind"] in ("ClusterRole", "Role")
    }
    for one in documents:
        if one["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        where, role = one["metadata"].get("namespace", ""), one["roleRef"]
        bound = (role["kind"], where if role["kind"] == "Role" else "", role["name"])
        rules = () if bound in OF_KUBERNETES else roles[bound]
        for subject in one["subjects"]:
            if subject["kind"] == "ServiceAccount":
                account = f"{subject['namespace']}:{subject['name']}"
                for rule in rules:
                    yield from _of_rule(account, where, rule)


def _of_rule(account: str, namespace: str, rule: Mapping[str, Any]) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(account, group, resource, verb, namespace, name)


def deployed() -> list[Document]:
    """Everything in deploy/, with all opt-ins."""
    return [*manifests(), *(one for name in opt_ins() for one in optional(name))]


def read(logs: Path) -> Requests:
    """Count the requests in the audit logs of a folder."""
    requests = Requests()
    for file in sorted(logs.glob("*.log")):
        with file.open() as lines:
            for line in lines:
                requests.add(json.loads(line))
    return requests


def report(found: Comparison) -> Iterator[str]:
    """The comparison as Markdown."""
    yield "| verb | resource | objects | where | account | requests | succeeded |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for right, counts in found.used.items():
        yield "| " + " | ".join([*right.cells(), *(f"{count:,}" for count in counts)]) + " |"
    yield from _list("Granted and not used", dict.fromkeys(found.unused, 0))
    yield from _list("Allowed and not granted by deploy/", found.ungranted)
    yield from _list("Refused", found.refused)
    yield from _list("Refused although deploy/ grants it", found.early)


def _list(title: str, rights: Mapping[Right, int]) -> Iterator[str]:
    yield ""
    yield f"{title}: {len(rights)}"
    for right, count in sorted(rights.items()):
        yield "- " + ", ".join(right.cells()) + (f": {count:,}" if count else "")


def main(logs: Path) -> int:
    """Print the comparison.

    Returns:
        1 without any request, or if a right is not used, or a request was allowed by a right that deploy/ does not grant; else 0.
    """
    found = compare(granted_rights(deployed()), read(logs))
    print("\n".join(report(found)))
    return int(not found.used or bool(found.unused) or bool(found.ungranted))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
