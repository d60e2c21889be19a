"""Identities and rights in Kubernetes' terms, so that a cluster's RBAC also rules queuectl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

API_GROUP: Final = "queuectl.dev"
"""In RBAC rules: the group of the resources of the REST API. No such resources exist in the cluster; only rights to them do."""
LONGEST_NAME: Final = 253  # of an object, in characters
LONGEST_TOKEN: Final = 16 * 1024  # characters; OIDC tokens with hundreds of groups have 8,000


@dataclass(frozen=True, slots=True)
class Caller:
    """A user or service account, as the API server knows it.

    Attributes:
        name: user name, for example ``alice`` or ``system:serviceaccount:team-a:trainer``.
        groups: of the user.
        uid: of the user; empty without one.
        extra: further fields of the authenticator.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Right:
    """One access, as a SubjectAccessReview asks about it.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        resource: plural as in the paths of the API, with a subresource for an action: ``workloads/hold``.
        namespace: of the object; empty = cluster-wide, or in all namespaces.
        name: of the object; empty = any.
        group: of the resource; empty = the core group.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    group: str = API_GROUP

    @property
    def nameable(self) -> bool:
        """Whether anything can be called so; paths of requests may say what they like."""
        return max(len(self.namespace), len(self.name)) <= LONGEST_NAME

    def __str__(self) -> str:
        what = f"{self.resource} {self.name}".strip()
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        of = f" of {self.group}" if self.group else ""
        return f"{self.verb} {what}{of} {where}"


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that showed a token once.

    Attributes:
        caller: whose token it was.
        since, until: unix seconds.
    """

    caller: Caller
    since: float
    until: float
