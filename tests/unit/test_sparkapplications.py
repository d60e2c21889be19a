"""SparkApplications: the requests of their pods, which queuectl computes as Spark does, and the pods that belong to them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from queuectl.domain.jobs import JobRecord, OwnerKey
from queuectl.domain.records import Upserted
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.description import labels_pods
from queuectl.objects.kinds.sparkapplication import SPARKAPPLICATION
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod
from queuectl.state.mirror import Mirror
from tests.support.jobs import Document, spark_application

MIB: Final = 1 << 20


def application(
    driver: Document | None = None, executor: Document | None = None, **spec: Any
) -> Document:
    """Without templates."""
    made = spark_application("etl", pods=3)
    made["spec"] |= spec
    made["spec"]["driver"] = driver or {}
    made["spec"]["executor"] = {"instances": 2} | (executor or {})
    return made


def read(document: Document) -> JobRecord:
    return SPARKAPPLICATION.read(msgspec.convert(document, SPARKAPPLICATION.wire))


def requests(document: Document, podset: str) -> dict[str, int]:
    record = read(document)
    assert record.error is None
    return dict(next(one for one in record.podsets if one.name == podset).shape.requests)


@pytest.mark.parametrize(
    ("fields", "spec", "mebibytes"),
    [
        ({}, {}, 1024 + 384),
        ({"memory": "512m"}, {}, 512 + 384),
        ({"memory": "8g"}, {}, 8192 + 819),
        ({"memory": "8G"}, {}, 8192 + 819),
        ({"memory": "8192"}, {}, 8192 + 819),
        ({"memory": "1t"}, {}, 1048576 + 104857),
        ({"memory": "8g", "memoryOverhead": "1g"}, {}, 8192 + 1024),
        ({"memory": "8g"}, {"memoryOverheadFactor": "0.5"}, 8192 + 4096),
        ({"memory": "8g"}, {"type": "Python"}, 8192 + 3276),
        ({"memory": "8g"}, {"type": "R"}, 8192 + 3276),
        ({}, {"sparkConf": {"spark.driver.memory": "2g", "spark.executor.memory": "2g"}}, 2432),
        (
            {"memory": "8g"},
            {"sparkConf": {"spark.driver.memory": "2g", "spark.executor.memory": "2g"}},
            8192 + 819,
        ),
    ],
)
@pytest.mark.parametrize("podset", ["driver", "executor"])
def test_memory_is_that_of_the_process_and_alongside_it(
    podset: str, fields: Document, spec: Document, mebibytes: int
) -> None:
    asked = application(**{podset: fields}, **spec)
    assert requests(asked, podset)["memory"] == mebibytes * MIB


def test_executors_have_memory_of_python_and_outside_the_heap() -> None:
    properties = {
        "spark.executor.pyspark.memory": "1g",
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": str(512 * MIB),
    }
    asked = application(executor={"memory": "1g"}, sparkConf=properties)
    assert requests(asked, "executor")["memory"] == (1024 + 384 + 512) * MIB
    asked["spec"]["type"] = "Python"
    assert requests(asked, "executor")["memory"] == (1024 + 409 + 1024 + 512) * MIB


@pytest.mark.parametrize(
    ("fields", "spec", "cpu"),
    [
        ({}, {}, 1000),
        ({"cores": 4}, {}, 4000),
        ({"cores": 4, "coreRequest": "500m"}, {}, 500),
        ({}, {"sparkConf": {"spark.executor.cores": "3"}}, 3000),
        ({"cores": 2}, {"sparkConf": {"spark.executor.cores": "3"}}, 2000),
    ],
)
def test_cpu_is_the_request_or_the_cores(fields: Document, spec: Document, cpu: int) -> None:
    assert requests(application(executor=fields, **spec), "executor")["cpu"] == cpu


def test_fields_alongside_a_template_do_not_count_as_the_operator_does_not_apply_them() -> None:
    gpu = {"gpu": {"name": "nvidia.com/gpu", "quantity": 2}, "nodeSelector": {"pool": "gpus"}}
    record = read(application(executor=gpu))
    [_, executor] = record.podsets
    assert executor.shape.requests["nvidia.com/gpu"] == 2
    assert dict(executor.shape.rules.selector) == {"pool": "gpus"}
    template = {"template": {"spec": {"containers": [{"name": "spark-kubernetes-executor"}]}}}
    [_, executor] = read(application(executor=gpu | template)).podsets
    assert "nvidia.com/gpu" not in executor.shape.requests
    assert executor.shape.rules.selector == ()


def test_the_containers_of_a_template_alongside_that_of_spark_count() -> None:
    side = {"name": "logs", "resources": {"requests": {"cpu": "2"}}}
    spec = {"containers": [side, {"name": "spark-kubernetes-driver"}]}
    assert requests(application(driver={"template": {"spec": spec}}), "driver")["cpu"] == 3000


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"mode": "client"}, "spec.mode: 'client' is not supported"),
        ({"dynamicAllocation": {"enabled": True}}, "spec.dynamicAllocation.enabled: a number of"),
        (
            {"sparkConf": {"spark.dynamicAllocation.enabled": "true"}},
            "spec.sparkConf: spark.dynamicAllocation.enabled: a number of",
        ),
        ({"batchScheduler": "volcano"}, "spec.batchScheduler: the pods of a job in a queue"),
        (
            {"sparkConf": {"spark.executor.instances": "4"}},
            "spec.sparkConf: spark.executor.instances: set spec.executor.instances",
        ),
        (
            {"sparkConf": {"spark.kubernetes.allocation.pods.allocator": "statefulset"}},
            "spec.sparkConf: spark.kubernetes.allocation.pods.allocator: the driver",
        ),
        ({"driver": {"memory": "much"}}, "spark.driver.memory: 'much' is not an amount of memory"),
        (
            {
                "sparkConf": {
                    "spark.memory.offHeap.enabled": "true",
                    "spark.memory.offHeap.size": "x",
                }
            },
            "spark.memory.offHeap.size: 'x' is not an amount of memory",
        ),
        ({"memoryOverheadFactor": "half"}, "memoryOverheadFactor: 'half' is not a number"),
        ({"executor": {"instances": 0}}, "spec.executor.instances: 0 is not a positive number"),
    ],
)
def test_what_is_refused_has_a_reason_with_the_field(changed: Document, error: str) -> None:
    record = read(application(**changed))
    assert error in str(record.error)


def test_dynamic_allocation_that_is_off_is_not_refused() -> None:
    off = {"spark.dynamicAllocation.enabled": "false"}
    assert read(application(sparkConf=off, dynamicAllocation={"enabled": False})).error is None


def test_only_the_labels_of_the_pods_change_at_a_start() -> None:
    record = read(application() | {"metadata": {"name": "etl", "uid": "u", "resourceVersion": "7"}})
    patch = SPARKAPPLICATION.start_patch(record, 2, "Starting")
    assert patch["spec"] == {
        "suspend": False,
        **{
            role: {
                "labels": {
                    keys.ATTEMPT_LABEL: "2",
                    keys.WORKLOAD_LABEL: "u",
                    keys.PODSET_LABEL: role,
                    keys.KIND_LABEL: "SparkApplication",
                }
            }
            for role in ("driver", "executor")
        },
    }


# ---- pods


def test_pods_are_made_by_pods_only_of_the_kinds_whose_pods_admission_gates_by_their_labels() -> (
    None
):
    assert {one.kind for one in DESCRIPTIONS if labels_pods(one)} == keys.POD_MAKERS


APP: Final = OwnerKey("SparkApplication", "default", "app")


def executor(uid: str, maker: str | None, *, gates: bool = True) -> Any:
    """A pod with the labels of an executor of ``app``. ``maker``: the uid of the pod that is its controller."""
    labels = {
        keys.KIND_LABEL: "SparkApplication",
        keys.WORKLOAD_LABEL: "app",
        keys.ATTEMPT_LABEL: "1",
        keys.PODSET_LABEL: "executor",
    }
    owners: list[Document] = [{"kind": "SparkApplication", "uid": "app", "name": "etl"}]
    if maker is not None:
        owners.append({"kind": "Pod", "uid": maker, "name": "d", "controller": True})
    spec = {"schedulingGates": [{"name": keys.GATE}] if gates else []}
    meta = {"name": uid, "uid": uid, "labels": labels, "ownerReferences": owners}
    return read_pod(msgspec.convert({"metadata": meta, "spec": spec}, WirePod))


def driver(uid: str, of: str) -> Any:
    owners = [{"kind": "SparkApplication", "uid": of, "name": "etl", "controller": True}]
    meta = {"name": uid, "uid": uid, "ownerReferences": owners, "resourceVersion": "1"}
    return read_pod(msgspec.convert({"metadata": meta, "spec": {}}, WirePod))


def test_an_executor_belongs_to_the_application_that_its_labels_name() -> None:
    made = executor("e", "d")
    assert (made.owned_by, made.maker, made.podset, made.rank) == (APP, "d", "executor", None)
    # The garbage collector removes the reference to a driver that is deleted.
    assert (executor("e", None).owned_by, executor("e", None).maker) == (APP, "")


def test_an_executor_that_waits_belongs_only_to_the_gang_of_its_driver() -> None:
    pods = [
        driver("mine", "app"),
        driver("other", "another"),
        executor("executor", "mine"),
        executor("forged", "other"),
        executor("orphan", "gone"),
        # queuectl has released these. Their drivers can be deleted before them.
        executor("released", "gone", gates=False),
        executor("left", None, gates=False),
    ]
    mirror = Mirror.of(KINDS)
    mirror.apply([Upserted(pod) for pod in pods])
    job = read(application() | {"metadata": {"name": "etl", "uid": "app"}})
    assert {pod.uid for pod in mirror.pods_of(job)} == {"mine", "executor", "released", "left"}
