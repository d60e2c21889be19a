"""Objects that a tenant with the role ``edit`` creates to harm others: a builder for each class.

The API server accepts each object of a class, or refuses it with a message of admission. Both are right: no object ends a process, and
none delays the gangs of other tenants. :class:`Attack` creates the objects of one class, changes them, and deletes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.domain.words import printable
from queuectl.localcluster import LocalCluster, nodes
from queuectl.localcluster.client import MERGE_PATCH, Client
from queuectl.localcluster.errors import ApiServerError
from queuectl.objects import keys
from tests.support.definitions import definition
from tests.support.elastic import elastic_of
from tests.support.jobsets import jobset, replicated
from tests.support.people import group_binding, role
from tests.support.sparkapplications import sparkapplication
from tests.system.claims import claim, request, template, using

NAMESPACE: Final = "hostile"
QUEUE: Final = "hostile"
DRIVER: Final = "hostile.example.com"
"""Of the devices that the selectors of claims are evaluated for."""
GPUS: Final = 8
"""The quota of the tenant, unless another one is given."""
MESSAGE: Final = 160
"""Characters of a message of admission that are kept."""
LEVELS: Final = 1500
"""Of nesting. The API server accepts 10,000."""
_LISTS, _FIELDS = "@lists@", "@fields@"
_DEEP: Final = {
    _LISTS: "[" * LEVELS + "]" * LEVELS,
    _FIELDS: '{"f:a":' * LEVELS + "{}" + "}" * LEVELS,
}
_AFTER: Final = keys.PREFIX + keys.AFTER
_GATES: Final = (keys.PREFIX + keys.ADMISSION_GATED_BY, keys.KUEUE_PREFIX + keys.ADMISSION_GATED_BY)
_LINE: Final = "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b1m\u202e"
"""Control characters that a terminal obeys."""


def configuration(gpus: int = GPUS) -> list[Document]:
    """The tenant's own queues. The flavor is that of the other queues."""
    return [
        m.cluster_queue(QUEUE, "gpu", {GPU: gpus, "cpu": "1M", "memory": "1P"}),
        m.local_queue(NAMESPACE, QUEUE, QUEUE),
    ]


def definitions() -> list[Document]:
    """Kinds that no operator of the control plane brings, without a schema: so more hostile objects are accepted.

    Apply them after queuectl is installed: the API server checks the types of the expressions of a new policy against the schema.
    """
    return [
        definition("sparkoperator.k8s.io", "SparkApplication", "sparkapplications", "v1beta2", scope="Namespaced"),
        definition("jobset.x-k8s.io", "JobSet", "jobsets", "v1alpha2", scope="Namespaced"),
    ]  # fmt: skip


def published(node: str) -> list[Document]:
    """A class of devices, and the devices of one node: without them, nothing evaluates a selector."""
    made = nodes.gpus(8, "A100")
    chosen = f"device.driver == '{DRIVER}'"
    return [
        nodes.device_class(DRIVER, chosen, extended_resource=None),
        *nodes.pool(node, made, driver=DRIVER),
    ]


@contextmanager
def tenant(cluster: LocalCluster) -> Iterator[Client]:
    """A user with the role ``edit`` in the namespace, and with the rights to jobs that a platform gives with it."""
    rules = [
        {"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}
        for group in ("kubeflow.org", "jobset.x-k8s.io", "sparkoperator.k8s.io", "resource.k8s.io", "policy")
    ]  # fmt: skip
    cluster.client.apply(
        *m.namespaces([NAMESPACE]),
        role("tenant-jobs", rules),
        group_binding("tenant-edit", "edit", "tenants", NAMESPACE),
        group_binding("tenant-jobs", "tenant-jobs", "tenants", NAMESPACE),
    )
    client = cluster.client_for_user("tenant", ["tenants"])
    try:
        yield client
    finally:
        client.close()


def body(document: Document) -> str:
    """The JSON of a document, with its deeply nested parts."""
    text = json.dumps(document)
    for mark, deep in _DEEP.items():
        text = text.replace(json.dumps(mark), deep)
    return text


def job(name: str, pods: PodSetManifest | None = None, **options: Any) -> Document:
    """A Job of the tenant."""
    return m.job(name, NAMESPACE, QUEUE, pods or PodSetManifest(2, gpus=8), **options)


def _with(document: Document, **metadata: Any) -> Document:
    return {**document, "metadata": {**document["metadata"], **metadata}}


def _of_pods(document: Document, **spec: Any) -> Document:
    """The job with these fields of its pods."""
    pods = document["spec"]["template"]
    pods = {**pods, "spec": {**pods["spec"], **spec}}
    return {**document, "spec": {**document["spec"], "template": pods}}


def gates(name: str, size: int) -> Iterator[Document]:
    """Names that no admission gate can have."""
    names = ("after the review", "after Job/x", ",,", "a/b/c", "x" * 400, _LINE, "é", " ")
    for number in range(size):
        key = _GATES[number // len(names) % 2]
        yield job(f"{name}-{number}", annotations={key: names[number % len(names)]})


def gpus(name: str, size: int) -> Iterator[Document]:
    """More GPUs than 64 bits count, where they are counted in parts."""
    amounts = ("1P", "1E", "9223372036854775807", "10P", "91000000000000")
    for number in range(size):
        document = job(f"{name}-{number}", PodSetManifest(1 + number % 2))
        [container] = document["spec"]["template"]["spec"]["containers"]
        asked = {**container["resources"]["requests"], GPU: amounts[number % len(amounts)]}
        container["resources"] = {"requests": asked, "limits": asked}
        yield document


def podsets(name: str, size: int) -> Iterator[Document]:
    """Many podsets of the most memory that a quantity states: their sum exceeds 64 bits."""
    huge = PodSetManifest(1, memory="1Ei")
    yield jobset(
        f"{name}-set",
        NAMESPACE,
        *(replicated(f"r{number}", 1, huge) for number in range(size)),
        queue=QUEUE,
    )
    yield m.pytorchjob(
        f"{name}-torch", NAMESPACE, QUEUE, master=huge, worker=PodSetManifest(1000, memory="1Ei")
    )
    for number in range(size):
        shape = PodSetManifest(1, cpu=str(1 + number), memory="1Ei", gpus=8)
        yield _member(f"{name}-{number}", f"{name}-group", size, shape)


def deep(name: str, size: int) -> Iterator[Document]:
    """Nesting in the fields that have no schema."""
    opaque = {"driver": DRIVER, "parameters": {"x": _LISTS}}
    spec: Document = {"devices": {"requests": [request(of=DRIVER)], "config": [{"opaque": opaque}]}}
    managed = {
        "manager": "x", "operation": "Update", "apiVersion": "batch/v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": _FIELDS},
    }  # fmt: skip
    for number in range(size):
        one = f"{name}-{number}"
        yield template(one, NAMESPACE, spec)
        yield claim(f"{one}-claim", NAMESPACE, spec)
        user = job(f"{one}-user", PodSetManifest(1))
        yield _of_pods(user, **using(user["spec"]["template"]["spec"], one))
        yield _with(job(f"{one}-managed"), managedFields=[managed])
        yield _with(
            m.job(f"{one}-plain", NAMESPACE, None, PodSetManifest(1)), managedFields=[managed]
        )
        spark = sparkapplication(f"{one}-spark", NAMESPACE, PodSetManifest(1), queue=None)
        spark["spec"]["driver"]["template"] = {"spec": {"x": _LISTS}}
        yield spark


def circle(name: str, size: int) -> Iterator[Document]:
    """Jobs that name each other, in several spellings."""
    spellings = ("Job/{}", "job/{}", "jOb/{}:ok", "JOB/{}:any", "Job/{}:failed")
    for number in range(size):
        others = [f"{name}-{other}" for other in range(size) if other != number]
        text = ",".join(form.format(other) for other in others for form in spellings)
        yield job(f"{name}-{number}", PodSetManifest(1), annotations={_AFTER: text})


def layers(name: str, size: int) -> Iterator[Document]:
    """A workflow of ten layers: each job waits for all jobs of the layer before it."""
    wide = max(1, size // 10)
    for number in range(size):
        layer = number // wide
        before = [f"Job/{name}-{n}" for n in range((layer - 1) * wide, layer * wide)]
        waits = {_AFTER: ",".join(before)} if layer else {_GATES[0]: "example.com/review"}
        yield job(f"{name}-{number}", PodSetManifest(1), annotations=waits)


def chain(name: str, size: int) -> Iterator[Document]:
    """Each job waits for the one before it."""
    for number in range(size):
        waits = {_AFTER: f"Job/{name}-{number - 1}"} if number else {_GATES[0]: "example.com/x"}
        yield job(f"{name}-{number}", PodSetManifest(1), annotations=waits)


def topologies(name: str, size: int) -> Iterator[Document]:
    """Levels that do not exist, for pods without requests."""
    for number in range(size):
        level = ("topology.queuectl.dev/rak", "rack", "", _LINE)[number % 4]
        document = job(f"{name}-{number}", PodSetManifest(1 + number, required=level))
        document["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
        yield document


def node_selectors(name: str, size: int) -> Iterator[Document]:
    """Selectors and affinities that no node fulfills, or that no scheduler understands."""
    terms = (
        {"key": "topology.queuectl.dev/rack", "operator": "Gt", "values": ["x"]},
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["no-such-node"]},
        {"key": "no.such/label", "operator": "Exists"},
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [f"n{i}" for i in range(500)]},
    )  # fmt: skip
    for number in range(size):
        document = job(f"{name}-{number}", PodSetManifest(1 + number % 3, gpus=1))
        if number % 2:
            yield _of_pods(document, nodeSelector={"no.such/label": "", "kubernetes.io/arch": "x"})
            continue
        expressions = {"matchExpressions": [terms[number // 2 % len(terms)]]}
        needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expressions]}}  # fmt: skip
        yield _of_pods(document, affinity={"nodeAffinity": needed})


def sparks(name: str, size: int) -> Iterator[Document]:
    """Factors and amounts that are not numbers, and templates of wrong types."""
    factors = ("inf", "nan", "1e400", "-1", "9" * 5000)
    templates = ({"metadata": "x"}, {"spec": [1]}, {"spec": {"containers": ["x", None]}}, {"spec": {"nodeSelector": [["a", "b"]]}})  # fmt: skip
    for number in range(size):
        one = sparkapplication(f"{name}-{number}", NAMESPACE, PodSetManifest(2), queue=QUEUE)
        one["spec"]["memoryOverheadFactor"] = factors[number % len(factors)]
        if number % 3 == 1:
            one["spec"]["driver"]["memory"] = "9" * 400 + "p"
        if number % 3 == 2:
            one["spec"]["driver"]["template"] = templates[number // 3 % len(templates)]
        yield one


def group(name: str, size: int) -> Iterator[Document]:
    """One group of pods, of which one pod is missing, so that all of them wait."""
    for number in range(size):
        yield _member(f"{name}-{number}", name, size + 1, PodSetManifest(1))


def selectors(name: str, size: int) -> Iterator[Document]:
    """Selectors of devices whose evaluation costs as much as their text allows."""
    numbers = f"[{','.join(map(str, range(100)))}]"
    quantities = "quantity('3').isLessThan(quantity('4'))"
    texts = (
        f"{numbers}.all(a, {numbers}.all(b, a <= b || true))",
        f"{numbers}.all(a, {numbers}.all(b, {' && '.join([quantities] * 8)}))",
    )
    for number in range(size):
        one = f"{name}-{number}"
        chosen = [
            {"cel": {"expression": f"{texts[number % 2]} && {number * 100 + i} >= 0"}}
            for i in range(1 + 31 * (number % 2))
        ]
        spec = {"devices": {"requests": [request(of=DRIVER, selectors=chosen)]}}
        yield template(one, NAMESPACE, spec)
        user = job(f"{one}-user", PodSetManifest(1 + number % 2))
        yield _of_pods(user, **using(user["spec"]["template"]["spec"], one))


def elastic(name: str, size: int) -> Iterator[Document]:
    """Elastic jobs that :func:`fewer` changes to fewer pods than their minimum number, and some that begin there."""
    for number in range(size):
        pods = PodSetManifest(2 if number % 2 else 4, gpus=1)
        yield elastic_of("Job", job(f"{name}-{number}", pods), 3)


def fewer(document: Document, turn: int) -> Document:
    count = 1 + turn % 4
    return {"spec": {"parallelism": count, "completions": count}}


def disruptions(name: str, size: int) -> Iterator[Document]:
    """Arrays whose pods no eviction may stop, and jobs that preempt them."""
    for number in range(size):
        one = f"{name}-{number}"
        mine = {"app": one}
        array = job(
            one, PodSetManifest(2, gpus=8), annotations={keys.PREFIX + keys.ARRAY: "true"},
            priority_class="low",
        )  # fmt: skip
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        array["spec"]["podFailurePolicy"] = {"rules": [ignored]}
        array["spec"]["template"]["metadata"]["labels"] = mine
        yield {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": one, "namespace": NAMESPACE},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": mine}},
        }
        yield array
        yield job(f"{one}-high", PodSetManifest(1, gpus=8), priority_class="high")


def large_annotations(name: str, size: int) -> Iterator[Document]:
    """As many bytes of annotations as the API server accepts."""
    for number in range(size):
        yield job(f"{name}-{number}", annotations={"example.com/notes": "x" * 250_000})


def control_characters(name: str, size: int) -> Iterator[Document]:
    """In each value that a terminal could show. Labels of queues cannot have them."""
    suffixes = (keys.AFTER, keys.EXPECTED_DURATION, keys.MAX_EXECUTION, keys.WARMUP, keys.ARRAY, keys.IDLE_SINCE)  # fmt: skip
    for number in range(size):
        key = keys.PREFIX + suffixes[number % len(suffixes)]
        yield job(f"{name}-{number}", annotations={key: f"Job/x{_LINE}", "example.com/x": _LINE})
    yield _with(job(f"{name}-label"), labels={keys.QUEUE_LABEL: _LINE})
    yield _with(job(f"{name}-name"), name=f"{name}{_LINE}")


def _member(name: str, of: str, total: int, pods: PodSetManifest) -> Document:
    """A pod of a group."""
    inner = pods.template("main", None, restart="Never")
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {keys.QUEUE_LABEL: QUEUE, keys.PREFIX + keys.POD_GROUP: of},
        "annotations": {keys.PREFIX + keys.POD_GROUP_TOTAL: str(total)},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": inner["spec"]}


def relabeled(document: Document, turn: int) -> Document:
    """A patch of a label that no reader uses."""
    return {"metadata": {"labels": {"turn": str(turn)}}}


@dataclass(frozen=True)
class HostileClass:
    """One class.

    Attributes:
        build: the objects, from the begin of their names and the size.
        size: of the class in a long run.
        short: of the class in a test.
        change: the patch of an object in a turn; None = the objects are not changed.
    """

    build: Callable[[str, int], Iterator[Document]]
    size: int
    short: int
    change: Callable[[Document, int], Document] = relabeled


CLASSES: Final[dict[str, HostileClass]] = {
    "gates": HostileClass(gates, 16, 16),
    "gpus": HostileClass(gpus, 10, 5),
    "podsets": HostileClass(podsets, 20, 10),
    "deep": HostileClass(deep, 3, 1),
    "circle": HostileClass(circle, 20, 5),
    "layers": HostileClass(layers, 200, 20),
    "chain": HostileClass(chain, 200, 20),
    "topologies": HostileClass(topologies, 8, 4),
    "node-selectors": HostileClass(node_selectors, 8, 8),
    "sparks": HostileClass(sparks, 15, 12),
    "group": HostileClass(group, 1000, 30),
    "selectors": HostileClass(selectors, 6, 2),
    "elastic": HostileClass(elastic, 4, 2, fewer),
    "disruptions": HostileClass(disruptions, 2, 1),
    "annotations": HostileClass(large_annotations, 20, 2),
    "control-characters": HostileClass(control_characters, 6, 6),
}


@dataclass
class Attack:
    """The objects of one class in one cluster.

    Attributes:
        client: of a user who can create them.
        refused: messages of admission, with the number of objects.
    """

    client: Client
    kind: HostileClass
    name: str
    created: dict[str, Document] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    def create(self, size: int) -> None:
        """Create the objects. A refusal is kept; other errors are raised."""
        self.client.each(self._create, list(self.kind.build(self.name, size)))

    def change(self, most: int = 1_000_000) -> None:
        """Change up to so many of the objects once."""
        paths = sorted(self.created)
        first = self._turn * most % max(1, len(paths))
        self.client.each(self._change, (paths[first:] + paths[:first])[:most])
        self._turn += 1

    def delete(self) -> None:
        """Delete the objects."""
        self.client.each(self._delete, sorted(self.created))
        self.created.clear()

    def _create(self, document: Document) -> None:
        path = self.client.path_of(document)
        try:
            self.client.send("POST", path.rsplit("/", 1)[0], body(document))
        except ApiServerError as error:
            if error.status not in (400, 403, 413, 422):
                raise
            self.refused[message_of(error)] += 1
        else:
            self.created[path] = document

    def _change(self, path: str) -> None:
        try:
            change = json.dumps(self.kind.change(self.created[path], self._turn))
            self.client.send("PATCH", path, change, MERGE_PATCH)
        except ApiServerError as error:
            if error.status not in (403, 404, 409, 422):
                raise

    def _delete(self, path: str) -> None:
        self.client.delete(path, missing_ok=True, propagationPolicy="Background")


def message_of(error: ApiServerError) -> str:
    """The begin of the message of a refusal in one line, without the name of the object."""
    text = str(error).rpartition("denied request: ")[2].rpartition(" is invalid: ")[2]
    return f"{error.status}: {' '.join(printable(text).split())[:MESSAGE]}"
