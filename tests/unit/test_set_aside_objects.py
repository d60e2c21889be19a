"""The file of an object that is set aside: no secrets, all digits, a bound of bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from queuectl.cluster.resources import watched
from queuectl.domain.containment import (
    KEPT_BYTES,
    KEPT_OBJECTS,
    WAITING_BYTES,
    Boundary,
    Containment,
    Inputs,
    Received,
    SetAside,
)
from queuectl.domain.records import Record
from queuectl.objects.files.set_aside_objects import REDACTED, pack, redacted
from tests.support.readable import READABLE

pytestmark = pytest.mark.sets_aside

SECRET = "hunter2"
POD: dict[str, Any] = {
    "serviceAccountName": "trainer",
    "nodeSelector": {"example.com/pool": "a100"},
    "containers": [
        {
            "name": "main",
            "image": f"https://ann:{SECRET}@registry.example.com/train:1",
            "command": ["sh", "-c", f"login {SECRET}"],
            "args": [f"--key={SECRET}"],
            "env": [
                {"name": "AWS_SECRET", "value": SECRET},
                {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": SECRET}}},
            ],
            "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Auth", "value": SECRET}]}},
            "resources": {"requests": {"nvidia.com/gpu": "1P", "cpu": 0.10}},
        }
    ],
    "volumes": [{"name": "disk", "csi": {"volumeAttributes": {"name": SECRET, "x": SECRET}}}],
}
JOB: dict[str, Any] = {
    "kind": "Job",
    "metadata": {
        "name": "train",
        "namespace": "team-a",
        "labels": {"queuectl.dev/queue-name": "main"},
        "annotations": {
            "queuectl.dev/after": "Job/b:ok",
            "kueue.x-k8s.io/podset-required-topology": "rack",
            "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"x": SECRET}),
        },
        "managedFields": [{"manager": SECRET}],
    },
    "spec": {
        "template": {"spec": POD},
        "rayClusterSpec": {"rayStartParams": {"redis-password": SECRET}},
        "entrypoint": SECRET,
        "runtimeEnvYAML": SECRET,
        "sparkConf": {
            "spark.executor.memory": "4g",
            "spark.executorEnv.TOKEN": SECRET,
            "spark.hadoop.fs.s3a.access.key": SECRET,
        },
        "driver": {"envVars": {"name": SECRET}},
        "memoryOverheadFactor": "inf",
        "apiToken": {"any": [SECRET]},
    },
    "status": {"conditions": [{"type": "Failed", "status": "True", "message": SECRET}]},
}


def text_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(redacted(json.dumps(document).encode()))
    return found


def test_no_secret_is_stored() -> None:
    assert SECRET not in json.dumps(text_of(JOB))


def test_what_the_reader_uses_stays() -> None:
    found = text_of(JOB)
    metadata, spec = found["metadata"], found["spec"]
    assert metadata["name"], metadata["labels"] == ("train", JOB["metadata"]["labels"])
    assert "managedFields" not in metadata
    assert metadata["annotations"] == {
        "queuectl.dev/after": "Job/b:ok",
        "kueue.x-k8s.io/podset-required-topology": "rack",
        "kubectl.kubernetes.io/last-applied-configuration": REDACTED,
    }
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert pod["nodeSelector"] == POD["nodeSelector"]
    assert container["resources"] == {"requests": {"nvidia.com/gpu": "1P", "cpu": 0.1}}
    assert [one["name"] for one in container["env"]] == ["AWS_SECRET", "FROM"]
    assert (spec["memoryOverheadFactor"], spec["sparkConf"]["spark.executor.memory"]) == (
        "inf",
        "4g",
    )


def test_numbers_keep_their_digits() -> None:
    text = b'{"spec":{"parallelism":1%b,"big":1e999,"small":0.10}}' % (b"0" * 5000)
    assert redacted(text) == text


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_bytes_that_are_not_a_document_are_not_stored(text: bytes) -> None:
    assert redacted(text) == b"null"


def unit(boundary: Boundary = Boundary.OBJECT) -> SetAside:
    return Containment(lambda: 5.0).failed(
        boundary, "u1", KeyError("x"), "jobs/team-a/train", namespace="team-a"
    )


def test_a_large_object_is_cut_with_a_mark() -> None:
    words = {f"w{number}": "x" * 1000 for number in range(1500)}
    text = json.dumps(JOB | {"spec": {"nodeSelector": words}}).encode()
    assert len(text) > 1_500_000
    file = pack(unit(), Received("jobs", text), ())
    found = json.loads(file.content)
    assert (file.truncated, file.size) == (True, len(text)) == (found["truncated"], found["bytes"])
    assert len(file.content) < KEPT_BYTES * 1.1
    assert found["text"].startswith('{"kind":"Job"')
    assert "object" not in found


@pytest.mark.parametrize("name", READABLE)
def test_the_records_of_each_resource_have_a_file(name: str) -> None:
    reader = next(one for one in watched() if one.name == name).read
    records: list[Record] = []
    for document in READABLE[name][1]:
        record = reader(msgspec.json.encode(document))
        records += [record] if record is not None else []
    found = json.loads(pack(unit(Boundary.RECORD), None, records).content)
    assert not found["truncated"]
    assert [type(one["value"]) for one in found["records"]] == [dict] * len(records)
    assert found["boundary"] == "record"


def test_the_newest_inputs_wait_up_to_a_number_and_a_size() -> None:
    inputs = Inputs()
    for number in range(1000):
        inputs.put("object", f"u{number}", Received("jobs", b"x"))
    kept = [number for number in range(1000) if inputs.get("object", f"u{number}") is not None]
    assert kept == list(range(1000 - KEPT_OBJECTS, 1000))
    large = Received("jobs", b"x" * (WAITING_BYTES // 2))
    for number in range(3):
        inputs.put("object", f"large{number}", large)
    assert inputs.get("object", "large0") is None
    assert inputs.get("object", "u999") is None
    assert inputs.get("object", "large1") is large
    inputs.drop("object", "large1")
    inputs.put("object", "large2", Received("jobs", b"x" * (2 * WAITING_BYTES)))
    assert inputs.get("object", "large2") is not None


def test_an_input_is_forgotten_when_its_unit_is_handled() -> None:
    containment = Containment(lambda: 5.0)
    containment.inputs.put(Boundary.OBJECT, "u1", Received("jobs", b"{}"))
    containment.failed(Boundary.OBJECT, "u1", KeyError("x"))
    containment.passed(Boundary.OBJECT, "u1")
    assert containment.inputs.get(Boundary.OBJECT, "u1") is None
