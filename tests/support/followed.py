"""Objects of Kueue as an API server has them, and the deltas of their watch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from queuectl.domain.records import ConfigurationRecord, Delta, ListCompleted, Upserted
from queuectl.objects.configuration.followed import followed_reader
from queuectl.objects.configuration.owners import FOLLOWED, Owner

KINDS = FOLLOWED[Owner.KUEUE]
VERSION = "kueue.x-k8s.io/v1beta2"
Object = dict[str, Any]


def flavor(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": spec,
    }


def cohort(name: str, parent: str | None = None) -> Object:
    spec = {} if parent is None else {"parentName": parent}
    return {"apiVersion": VERSION, "kind": "Cohort", "metadata": {"name": name}, "spec": spec}


def queue(name: str, quota: Any = 8, flavor: str = "gpu", **spec: Any) -> Object:
    """A ClusterQueue with GPUs of one flavor."""
    resource = {"name": "nvidia.com/gpu", "nominalQuota": quota}
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": flavor, "resources": [resource]}],
    }
    spec = {"resourceGroups": [group], "namespaceSelector": {}, **spec}
    return {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def local_queue(namespace: str, name: str, target: str) -> Object:
    meta = {"namespace": namespace, "name": name}
    spec = {"clusterQueue": target}
    return {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": meta, "spec": spec}


def record(
    body: Mapping[str, Any],
    *,
    generation: int = 1,
    version: int = 1,
    uid: str = "",
    **metadata: Any,
) -> ConfigurationRecord:
    """The object as the watch reads it. Its uid is its kind and name, unless another is given."""
    meta = dict(body["metadata"])
    known = uid or f"{body['kind']}/{meta.get('namespace', '')}/{meta['name']}"
    meta |= {"uid": known, "generation": generation, "resourceVersion": str(version), **metadata}
    raw = json.dumps({**body, "metadata": meta}).encode()
    return followed_reader(body["kind"])(raw)


def plural_of(kind: str) -> str:
    return next(one.plural for one in KINDS if one.kind.kind == kind)


def listed(*bodies: Mapping[str, Any], version: int = 1) -> list[Delta]:
    """Complete lists of all kinds."""
    records = [record(body, version=version) for body in bodies]
    return [*map(Upserted, records), *completed(records, version)]


def completed(records: Sequence[ConfigurationRecord], version: int = 1) -> list[Delta]:
    """The ends of the lists of all kinds, with these objects."""
    return [
        ListCompleted(
            kind.plural, frozenset(r.uid for r in records if r.kind == kind.kind.kind), version
        )
        for kind in KINDS
    ]
