"""A valid object of each resource that the controller watches, with the fields that its reader uses."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from queuectl.objects.kinds import DESCRIPTIONS, KINDS, leaderworkerset
from queuectl.objects.kinds.description import PodSets, merged, nested
from queuectl.objects.kinds.pods import WireMember
from queuectl.objects.kubernetes.namespace_limits import WireLimitRange
from queuectl.objects.kubernetes.nodes import WireNodeTopology
from queuectl.objects.kubernetes.provisioning import WORKLOAD, WireProvisioningRequest
from queuectl.objects.kubernetes.resource_wire import (
    WireClaimTemplate,
    WireDeviceClass,
    WireResourceClaim,
    WireResourceSlice,
    WireTaintRule,
)
from queuectl.objects.kubernetes.templates import WireRuntimeClass
from queuectl.objects.kubernetes.wire import (
    WireNamespace,
    WireNode,
    WirePriorityClass,
    WireResourceQuota,
)

Document = dict[str, Any]

_OWN: Final = "queuectl.dev/"
_RACK: Final = "example.com/rack"
_DISRUPTION: Final = {
    "rules": [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
}


def _meta(**more: Any) -> Document:
    return {
        "name": "a",
        "namespace": "team",
        "uid": "00000000-0000-0000-0000-000000000001",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            f"{_OWN}queue-name": "main",
            f"{_OWN}priority-class": "batch",
            f"{_OWN}max-exec-time-seconds": "60",
            "user": "ann",
        },
        "annotations": {
            f"{_OWN}admission-gated-by": "example.com/data",
            f"{_OWN}after": "Job/b:ok",
            f"{_OWN}submitted-by": "ann",
            f"{_OWN}preemptible": "true",
            f"{_OWN}idle-reclaim": "true",
            f"{_OWN}warmup-seconds": "60",
            f"{_OWN}gpu-utilization": "0.5",
            f"{_OWN}last-checkpoint-time": "2026-01-01T00:00:00Z",
            f"{_OWN}expected-duration-seconds": "60",
            **more.pop("annotations", {}),
        },
        "ownerReferences": [{"uid": "o", "kind": "TrainJob", "name": "o", "controller": True}],
        "managedFields": [{"operation": "Apply", "fieldsV1": {"f:spec": {}}}],
        **more,
    }


_CONTAINER: Final[Document] = {
    "name": "main",
    "resources": {
        "requests": {"cpu": "1500m", "memory": "1.5Gi", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": 1, "cpu": 2},
        "claims": [{"name": "device"}],
    },
    "ports": [{"containerPort": 80}],
}
_POD_SPEC: Final[Document] = {
    "containers": [_CONTAINER],
    "initContainers": [
        {"name": "first", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    ],
    "overhead": {"cpu": "10m"},
    "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}},
    "nodeSelector": {"zone": "z1"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "zone", "operator": "In", "values": ["z1"]},
                            {"key": "generation", "operator": "Gt", "values": ["3"]},
                        ],
                        "matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": ["n0"]}
                        ],
                    }
                ]
            }
        },
        "podAffinity": {},
    },
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
    "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "one"}],
    "schedulingGates": [{"name": f"{_OWN}placement"}],
    "priorityClassName": "queuectl-managed",
}
_TEMPLATE: Final[Document] = {
    "metadata": {
        "labels": {f"{_OWN}attempt": "1", f"{_OWN}podset": "main"},
        "annotations": {
            f"{_OWN}podset-required-topology": _RACK,
            f"{_OWN}podset-slice-required-topology": "kubernetes.io/hostname",
            f"{_OWN}podset-slice-size": "2",
            f"{_OWN}podset-shared-gpus": "Any",
            f"{_OWN}podset-balanced": "true",
            f"{_OWN}podset-numa-policy": "single-numa-node",
        },
    },
    "spec": _POD_SPEC,
}
_LAYERED: Final[Document] = {
    "metadata": {
        "annotations": {
            f"{_OWN}podset-group-name": "all",
            f"{_OWN}podset-preferred-topology": _RACK,
            f"{_OWN}podset-slice-required-topology-constraints": '[{"topology":"example.com/block","size":2}]',
        }
    },
    "spec": {"containers": [{"name": "main"}]},
}
_PLAIN: Final[Document] = {"spec": {"containers": [_CONTAINER | {"resources": {}}]}}
_GROWING: Final[Document] = {**_PLAIN, "metadata": {"annotations": {f"{_OWN}min-count": "1"}}}


def _job(spec: Document, **annotations: str) -> Document:
    own = {_OWN + name.replace("_", "-"): value for name, value in annotations.items()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(annotations=own),
        "spec": {
            "suspend": True,
            "parallelism": 4,
            "completions": 4,
            "completionMode": "Indexed",
            "template": _TEMPLATE,
            "podFailurePolicy": _DISRUPTION,
            "successPolicy": {"rules": [{"succeededIndexes": "0-1,3", "succeededCount": 1}]},
            **spec,
        },
        "status": {
            "active": 2,
            "succeeded": 1,
            "completedIndexes": "0,2-3",
            "failedIndexes": "1",
            "conditions": [{"type": "Suspended", "status": "True"}],
        },
    }


def _of(kind: str, spec: Document, status: Document | None = None, **annotations: str) -> Document:
    one = KINDS[kind]
    own = {_OWN + name.replace("_", "-"): value for name, value in annotations.items()}
    return {
        "apiVersion": f"{one.group}/{one.version}",
        "kind": kind,
        "metadata": _meta(annotations=own),
        "spec": spec,
        "status": status or {"conditions": [{"type": "Suspended", "status": "True"}]},
    }


def _of_description(kind: str) -> list[Document]:
    """A job with each place of podsets that the description of its kind has, whose last podset has each field of a pod template."""
    [one] = [described for described in DESCRIPTIONS if described.kind == kind]
    parts = [nested(one.suspend, True)]
    parts += [nested(one.priority_class, "batch")] if one.priority_class else []
    parts += [nested(one.manager.path, one.manager.name)] if one.manager else []
    last = one.podsets[-1]
    for place in one.podsets:
        plain = _entry(place, _PLAIN, 1)
        content: Any = _entry(place, _TEMPLATE, 4) if place is last else plain
        if place.types:
            content = {**dict.fromkeys(place.types, plain), "Worker": content}
        elif place.key:
            content = [{place.key: "workers", **content}]
        parts.append(nested(place.path, content))
    spec: Any = merged(parts)["spec"]
    return [_of(kind, spec)]


def _entry(place: PodSets, template: Document, factor: int) -> Document:
    """An entry of a place; ``factor``: each one of the number of its pods."""
    counts = [nested(paths[0], factor) for paths in place.count]
    return dict(merged([*counts, nested(place.template, template) if place.template else template]))


def _pytorch() -> list[Document]:
    [whole] = _of_description("PyTorchJob")
    spec = whole["spec"]
    workers = {"replicas": 4, "restartPolicy": "OnFailure", "template": _GROWING}
    elastic = spec | {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "pytorchReplicaSpecs": {"Worker": workers},
    }
    own_field = elastic | {"pytorchReplicaSpecs": {"Worker": workers | {"template": _PLAIN}}}
    return [whole, *(_of("PyTorchJob", one, elastic_job="true") for one in (elastic, own_field))]


def _jobsets() -> list[Document]:
    one = {
        "name": "leader",
        "replicas": 2,
        "template": {"spec": {"parallelism": 2, "completions": 2, "template": _TEMPLATE}},
    }
    after = one | {"name": "late", "dependsOn": [{"name": "leader", "status": "Complete"}]}
    growing = {
        "name": "workers",
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": 3,
                "completions": 3,
                "podFailurePolicy": _DISRUPTION,
                "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
                "template": _GROWING,
            }
        },
    }
    statuses = [{"name": "leader", "ready": 1, "active": 1, "succeeded": 0, "failed": 0}]
    status = {"replicatedJobsStatus": statuses}
    order = {"startupPolicyOrder": "AnyOrder"}
    success = {"operator": "All", "targetReplicatedJobs": ["workers"]}
    return [
        _of("JobSet", {"suspend": True, "replicatedJobs": [one, after]}, status),
        _of(
            "JobSet",
            {"replicatedJobs": [growing], "startupPolicy": order, "successPolicy": success},
            elastic_job="true",
        ),
    ]


def _ray() -> tuple[list[Document], Document]:
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 1, "maxReplicas": 4, "numOfHosts": 1}
    cluster = {
        "headGroupSpec": {"template": _PLAIN},
        "workerGroupSpecs": [workers | {"template": _GROWING}],
    }
    job = {
        "suspend": True,
        "shutdownAfterJobFinishes": True,
        "submissionMode": "K8sJobMode",
        "rayClusterSpec": cluster,
        "submitterPodTemplate": _PLAIN,
    }
    status = {"jobDeploymentStatus": "Suspended", "jobStatus": "PENDING"}
    own_field = {"workerGroupSpecs": [workers | {"template": _PLAIN}]}
    clusters = (cluster, cluster | own_field)
    elastic = [_of("RayCluster", {"suspend": True, **one}, elastic_job="true") for one in clusters]
    return elastic, _of("RayJob", job, status)


def _spark() -> list[Document]:
    container = {"name": "spark-kubernetes-driver", "resources": {"requests": {"cpu": "1"}}}
    spec = {
        "type": "Python",
        "mode": "cluster",
        "suspend": True,
        "memoryOverheadFactor": "0.2",
        "nodeSelector": {"zone": "z1"},
        "sparkConf": {
            "spark.driver.memoryOverheadFactor": "0.3",
            "spark.executor.minMemoryOverhead": "500m",
            "spark.executor.pyspark.memory": "1g",
            "spark.memory.offHeap.enabled": "true",
            "spark.memory.offHeap.size": "1073741824",
            "spark.executor.resource.gpu.amount": "2",
            "spark.executor.resource.gpu.vendor": "nvidia.com",
            "spark.kubernetes.node.selector.zone": "z1",
            "spark.kubernetes.executor.node.selector.rack": "r1",
        },
        "driver": {
            "cores": 1,
            "coreRequest": "500m",
            "memory": "2g",
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {"containers": [container, {"name": "beside"}]},
            },
        },
        "executor": {
            "instances": 2,
            "cores": 4,
            "coreLimit": "5",
            "memory": "8g",
            "memoryOverhead": "1g",
            "labels": {"a": "b"},
            "annotations": {f"{_OWN}podset-preferred-topology": _RACK},
            "priorityClassName": "batch",
            "affinity": _POD_SPEC["affinity"],
            "tolerations": _POD_SPEC["tolerations"],
            "hostNetwork": False,
            "initContainers": _POD_SPEC["initContainers"],
            "nodeSelector": {"zone": "z1"},
            "sidecars": [{"name": "beside", "resources": {"requests": {"cpu": "1"}}}],
            "gpu": {"name": "nvidia.com/gpu", "quantity": 1},
        },
    }
    return [_of("SparkApplication", spec, {"applicationState": {"state": "SUSPENDED"}})]


def _wrapped() -> list[Document]:
    job = _job({"suspend": False})
    pod = {"apiVersion": "v1", "kind": "Pod", **_PLAIN}
    (ray, *_), _ = _ray()
    ray = {**ray, "metadata": {}, "spec": {**ray["spec"], "suspend": False}}
    ray["spec"]["workerGroupSpecs"] = [
        one | {"template": _PLAIN} for one in ray["spec"]["workerGroupSpecs"]
    ]
    info = {
        "labels": {f"{_OWN}attempt": "1"},
        "schedulingGates": [{"name": f"{_OWN}placement"}],
    }
    jobs = [{"path": "template.spec.template", "replicas": 4}]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    components = [
        {"template": job, "podSets": jobs, "podSetInfos": [info]},
        {"template": {**pod, "spec": {"containers": [{"name": "main"}]}}},
        {"template": other},
    ]
    return [
        _of("AppWrapper", {"suspend": True, "components": components}, {"phase": "Suspended"}),
        _of("AppWrapper", {"components": [{"template": ray}]}, {"phase": "Running"}),
    ]


def _trainjob() -> Document:
    change = {"metadata": {"labels": {f"{_OWN}attempt": "1"}}, "spec": {"replicatedJobs": []}}
    patch = {"manager": f"{_OWN}controller", "trainingRuntimeSpec": {"template": change}}
    spec = {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}, "runtimePatches": [patch]}
    status = {"jobsStatus": [{"name": "node", "active": 0}], "conditions": []}
    return _of("TrainJob", {"suspend": True, **spec}, status)


def _pods() -> list[Document]:
    status = {
        "phase": "Running",
        "reason": "",
        "startTime": "2026-01-01T00:00:00Z",
        "qosClass": "Guaranteed",
        "conditions": [{"type": "Ready", "status": "False", "reason": "Unschedulable"}],
        "initContainerStatuses": [
            {"name": "init", "restartCount": 1, "state": {"waiting": {"reason": "x"}}}
        ],
        "allocatedResources": {"cpu": "1"},
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        "containerStatuses": [
            {
                "name": "main",
                "allocatedResources": {"cpu": "1"},
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
                "restartCount": 1,
                "state": {"terminated": {"reason": "Error", "exitCode": 1}},
            }
        ],
    }
    meta = _meta()
    meta["labels"] |= {
        f"{_OWN}workload": "u",
        f"{_OWN}workload-kind": "JobSet",
        f"{_OWN}attempt": "1",
        f"{_OWN}podset": "main",
        f"{_OWN}ranks-per-group": "2",
        f"{_OWN}first-rank": "1",
        "batch.kubernetes.io/job-completion-index": "3",
        "jobset.sigs.k8s.io/job-index": "1",
        f"{_OWN}pod-group-name": "group",
    }
    meta["annotations"] |= {
        f"{_OWN}pod-group-total-count": "2",
        f"{_OWN}pod-group-fast-admission": "true",
        f"{_OWN}retriable-in-group": "true",
        f"{_OWN}preempt-ready": "true",
        f"{_OWN}podset-required-topology": _RACK,
    }
    bound = {**meta, "labels": {}, "annotations": {}}
    ended = {**status, "phase": "Failed"}
    return [
        {"metadata": meta, "spec": _POD_SPEC, "status": status},
        {"metadata": bound, "spec": {**_POD_SPEC, "nodeName": "n0"}, "status": ended},
    ]


def _nodes() -> list[Document]:
    geometry = '{"config":"all-1g","product":"x","gpus":{"nvidia.com/mig-1g.10gb":7}}'
    change = (
        f'{{"phase":"Draining","since":"2026-01-01T00:00:00Z","from":{geometry},"to":{geometry},'
        '"gang":"u","nodes":1,"begun":"2026-01-01T00:00:00Z"}'
    )
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
    meta = {"name": "n0", "uid": "u", "resourceVersion": "7", "labels": {"zone": "z1"}}
    return [
        {
            "metadata": {**meta, "annotations": {f"{_OWN}mig-reconfiguration": change}},
            "spec": {
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                "unschedulable": True,
            },
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "x"}],
            },
        }
    ]


def _slice() -> Document:
    numbers = {"value": "40Gi", "requestPolicy": {"default": "1Gi"}}
    ranged = {"validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"}, "default": "1Gi"}
    device = {
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "a"},
            "driverVersion": {"version": "1.2.3"},
            "index": {"int": 1},
            "healthy": {"bool": True},
            "ids": {"strings": ["a"]},
            "versions": {"versions": ["1.0.0"]},
        },
        "capacity": {"memory": numbers, "shares": {"value": 1, "requestPolicy": ranged}},
        "consumesCounters": [{"counterSet": "gpu", "counters": {"slices": {"value": "1"}}}],
        "taints": [{"key": "k", "effect": "NoSchedule"}],
    }
    spec = {
        "driver": "gpu.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeSelector": _POD_SPEC["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ],
        "devices": [device],
        "sharedCounters": [{"name": "gpu", "counters": {"slices": {"value": "7"}}}],
    }
    return {"metadata": {"name": "s", "resourceVersion": "7"}, "spec": spec}


_CLAIM: Final[Document] = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": "gpu.example.com",
                    "selectors": [{"cel": {"expression": "device.driver == 'x'"}}],
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
                    "capacity": {"requests": {"memory": "1Gi"}},
                },
            },
            {
                "name": "any",
                "firstAvailable": [{"name": "big", "deviceClassName": "gpu.example.com"}],
            },
        ],
        "constraints": [{"requests": ["gpu"], "matchAttribute": "gpu.example.com/model"}],
        "config": [{"opaque": {"driver": "d", "parameters": {"a": "b"}}}],
    }
}


def _claim() -> Document:
    result = {
        "request": "gpu",
        "driver": "d",
        "pool": "p",
        "device": "gpu-0",
        "consumedCapacity": {"memory": "1Gi"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
    }
    terms = _POD_SPEC["affinity"]["nodeAffinity"]
    [selector] = terms.values()
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "uid": "p"}]}
    return {"metadata": _meta(), "spec": _CLAIM, "status": status}


def _quota() -> Document:
    amounts = {"pods": "5", "requests.nvidia.com/gpu": "8", "limits.memory": "1Ti"}
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["queuectl-managed"]}
    spec = {"hard": amounts, "scopeSelector": {"matchExpressions": [scope]}}
    return {"metadata": _meta(), "spec": spec, "status": {"hard": amounts, "used": amounts}}


def _limits() -> Document:
    amounts = {"cpu": "1", "memory": "1Gi"}
    item = dict.fromkeys(("default", "defaultRequest", "min", "max", "maxLimitRequestRatio"))
    limits = [dict.fromkeys(item, amounts) | {"type": kind} for kind in ("Container", "Pod")]
    return {"metadata": _meta(), "spec": {"limits": limits}}


def _request() -> Document:
    meta = _meta(annotations={WORKLOAD: "u"})
    conditions = [{"type": "Provisioned", "status": "True", "message": "x"}]
    status = {"conditions": conditions, "provisioningClassDetails": {"a": "b"}}
    spec = {"podSets": [{"podTemplateRef": {"name": "t"}}]}
    return {"metadata": meta, "spec": spec, "status": status}


def _set() -> Document:
    group = {"size": 3, "leaderTemplate": _PLAIN, "workerTemplate": _LAYERED}
    spec = {"replicas": 2, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": group}
    return {"metadata": _meta(), "spec": spec}


def _topology() -> Document:
    resources = [{"name": "cpu", "allocatable": "8"}]
    zones = [{"name": "node-0", "type": "Node", "resources": resources}]
    attributes = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
    policies = ["SingleNUMANodePodLevel"]
    meta = {"name": "n0", "resourceVersion": "7"}
    return {
        "metadata": meta,
        "zones": zones,
        "attributes": attributes,
        "topologyPolicies": policies,
    }


def _mpi() -> list[Document]:
    [one] = _of_description("MPIJob")
    one["spec"] |= {"launcherCreationPolicy": "WaitForWorkersReady", "runLauncherAsWorker": True}
    return [one]


_RAY_CLUSTERS, _RAY_JOB = _ray()
_WITH_OWN_FIELDS: Final[dict[str, list[Document]]] = {
    "Job": [
        _job({}),
        _job({"template": _PLAIN}, array="true"),
        _job({"template": _PLAIN}, elastic_job="true", job_min_parallelism="2"),
    ],
    "PyTorchJob": _pytorch(),
    "JobSet": _jobsets(),
    "RayCluster": _RAY_CLUSTERS,
    "RayJob": [_RAY_JOB],
    "MPIJob": _mpi(),
    "TrainJob": [_trainjob()],
    "AppWrapper": _wrapped(),
    "SparkApplication": _spark(),
}
"""Objects of the kinds that read more than their description."""
_CLASS: Final[Document] = {
    "metadata": _meta(),
    "spec": {
        "selectors": [{"cel": {"expression": "true"}}],
        "extendedResourceName": "example.com/gpu",
    },
}
_RULE: Final[Document] = {
    "metadata": _meta(),
    "spec": {
        "deviceSelector": {"driver": "d", "pool": "p", "device": "x"},
        "taint": {"key": "k", "value": "v", "effect": "NoExecute"},
    },
}
_NAMESPACE: Final[Document] = {
    "metadata": {
        "name": "team",
        "labels": {"a": "b"},
        "annotations": {
            "scheduler.alpha.kubernetes.io/node-selector": "a=b,c=d",
            "openshift.io/node-selector": "",
        },
    }
}
_RUNTIME: Final[Document] = {
    "metadata": {"name": "kata", "resourceVersion": "7"},
    "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
    "scheduling": {
        "nodeSelector": {"kata": "yes"},
        "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
_PRIORITY: Final[Document] = {
    "metadata": {"name": "batch", "resourceVersion": "7"},
    "value": 100,
    "globalDefault": True,
    "preemptionPolicy": "Never",
}

READABLE: Final[dict[str, tuple[type[msgspec.Struct], list[Document]]]] = {
    **{
        kind.plural: (kind.wire, _WITH_OWN_FIELDS.get(name) or _of_description(name))
        for name, kind in KINDS.items()
    },
    leaderworkerset.PLURAL: (leaderworkerset.WireSet, [_set()]),
    "pods": (WireMember, _pods()),
    "nodes": (WireNode, _nodes()),
    "namespaces": (WireNamespace, [_NAMESPACE]),
    "priorityclasses": (WirePriorityClass, [_PRIORITY]),
    "resourcequotas": (WireResourceQuota, [_quota()]),
    "limitranges": (WireLimitRange, [_limits()]),
    "runtimeclasses": (WireRuntimeClass, [_RUNTIME]),
    "resourceslices": (WireResourceSlice, [_slice()]),
    "deviceclasses": (WireDeviceClass, [_CLASS]),
    "resourceclaims": (WireResourceClaim, [_claim()]),
    "resourceclaimtemplates": (
        WireClaimTemplate,
        [{"metadata": _meta(), "spec": {"spec": _CLAIM}}],
    ),
    "devicetaintrules": (WireTaintRule, [_RULE]),
    "noderesourcetopologies": (WireNodeTopology, [_topology()]),
    "provisioningrequests": (WireProvisioningRequest, [_request()]),
}
"""By the name of the resource: the struct to which it is decoded, and objects."""
