"""The Spark operator and Spark, as :mod:`tests.doubles.controllers` has the others: the operator creates the driver, which creates the executors.

The application has no retries. Admission gates each pod by its labels.
"""

from __future__ import annotations

from queuectl.objects import keys
from tests.doubles.admission import gated, suspended
from tests.doubles.apiserver import Document, Server, copied
from tests.doubles.writing import make_pod

_ENDED = ("Succeeded", "Failed")
_ENDS = {"Succeeded": "COMPLETED", "Failed": "FAILED"}


def sync(server: Server, app: Document) -> None:
    """One pass for a SparkApplication."""
    state = app.get("status", {}).get("applicationState", {}).get("state", "")
    if state in _ENDS.values():
        return
    driver = next(iter(server.owned(app["metadata"]["uid"])), None)
    executors = [] if driver is None else server.owned(driver["metadata"]["uid"])
    phase = driver["status"]["phase"] if driver is not None else ""
    leaves = driver is not None and "deletionTimestamp" in driver["metadata"]
    if suspended(app):
        state = "SUSPENDED"
        if driver is not None:
            _delete(server, driver, *executors)
    elif driver is None:
        state = "SUBMITTED"
        _make(server, app, app, "driver", f"{app['metadata']['name']}-driver")
    elif phase in _ENDED:
        state = _ENDS[phase]
        _delete(server, *executors)
    elif phase == "Running" and not leaves:
        state = "RUNNING"
        _make_executors(server, app, driver, executors)
    status = {"applicationState": {"state": state}}
    server.edit("sparkapplications", app, lambda d: d.setdefault("status", {}).update(status))


def _delete(server: Server, *pods: Document) -> None:
    for pod in pods:
        if pod["status"]["phase"] not in _ENDED and "deletionTimestamp" not in pod["metadata"]:
            server.delete("pods", pod)


def _make_executors(
    server: Server, app: Document, driver: Document, executors: list[Document]
) -> None:
    """Each executor gets a new number, also one that follows another."""
    present = [one for one in executors if one["status"]["phase"] not in _ENDED]
    numbers = [int(one["metadata"]["labels"]["spark-exec-id"]) for one in executors]
    for more in range(app["spec"]["executor"]["instances"] - len(present)):
        number = max(numbers, default=0) + more + 1
        # A driver of another attempt creates executors of other names.
        name = f"{app['metadata']['name']}-{driver['metadata']['uid']}-exec-{number}"
        labels = {"spark-exec-id": str(number)}
        _make(server, app, driver, "executor", name, labels)


def _make(
    server: Server,
    app: Document,
    owner: Document,
    role: str,
    name: str,
    labels: dict[str, str] | None = None,
) -> None:
    """The labels of the application are copied to its pods, its queue too."""
    entry = app["spec"][role]
    own = {**app["metadata"].get("labels", {}), **entry.get("labels", {}), "spark-role": role}
    template = copied(entry["template"])
    if keys.KIND_LABEL in own and not gated(template["spec"]):
        template["spec"]["priorityClassName"] = keys.POD_PRIORITY_CLASS
        template["spec"].setdefault("schedulingGates", []).append({"name": keys.GATE})
    make_pod(server, owner, template, name, {**own, **(labels or {})})
