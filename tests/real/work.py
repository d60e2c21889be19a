"""Jobs of real containers, and the output of their processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from queuectl.demo import scenario as m
from queuectl.demo.recorder import ObjectRevision
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import PodRecord
from queuectl.localcluster.errors import ApiServerError
from tests.real import images
from tests.system.installation import Workspace


def job(
    workspace: Workspace,
    name: str,
    pods: PodSetManifest,
    script: str,
    *,
    image: str = images.BASE.name,
    grace: int = 5,
    spec: Document | None = None,
    container: Document | None = None,
    **options: Any,
) -> Document:
    """An Indexed Job whose pods run a shell script.

    Args:
        workspace: the namespace of the test.
        name: name of the Job.
        pods: the pods.
        script: what each of them runs, by /bin/sh.
        image: the image of the container.
        grace: terminationGracePeriodSeconds.
        spec: further fields of the pod.
        container: further fields of the container.
        options: further options of `manifests.job`.
    """
    options = {"queue": "main", **options}
    document = m.job(name, workspace.namespace, pods=pods, **options)
    template = document["spec"]["template"]["spec"]
    template |= {"terminationGracePeriodSeconds": grace} | (spec or {})
    template["containers"][0] |= _container(image, script) | (container or {})
    return document


def run(
    workspace: Workspace, name: str, pods: PodSetManifest, script: str, **options: Any
) -> Document:
    """Submit a Job with the arguments of `job`."""
    return workspace.submit(job(workspace, name, pods, script, **options))


def _container(image: str, script: str) -> Document:
    return {"image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}


def pods(workspace: Workspace, name: str) -> list[Document]:
    """The pods of a job, as the API server returns them, in the order of their ranks."""
    path = f"/api/v1/namespaces/{workspace.namespace}/pods"
    listed = workspace.client.get(path, labelSelector=f"job-name={name}")["items"]
    return sorted(listed, key=lambda pod: pod["metadata"]["name"])


def log(workspace: Workspace, pod: str) -> str:
    """The output of the process of a pod; empty before its container starts."""
    try:
        return workspace.client.text(f"/api/v1/namespaces/{workspace.namespace}/pods/{pod}/log")
    except ApiServerError as error:
        if error.status == HTTPStatus.BAD_REQUEST:
            return ""
        raise


def logs(workspace: Workspace, name: str) -> list[str]:
    """The logs of the pods of a job, by rank."""
    return [log(workspace, pod["metadata"]["name"]) for pod in pods(workspace, name)]


def events(workspace: Workspace, name: str) -> Iterator[tuple[ObjectRevision, PodRecord]]:
    """Each revision of each pod of a job."""
    for event in workspace.recorder.recording().events:
        pod = event.fact
        if not isinstance(pod, PodRecord) or pod.namespace != workspace.namespace:
            continue
        if pod.name.startswith(f"{name}-"):
            yield event, pod


def first(
    workspace: Workspace, name: str, condition: Callable[[PodRecord], bool]
) -> ObjectRevision:
    """The first revision of a pod of a job that fulfills a condition."""
    return next(event for event, pod in events(workspace, name) if condition(pod))


def ends(workspace: Workspace, name: str, attempt: int) -> list[ObjectRevision]:
    """For each pod of an attempt that has ended, the revision with its end."""
    found: dict[str, ObjectRevision] = {}
    for event, pod in events(workspace, name):
        if pod.attempt == attempt and (event.gone or pod.terminal):
            found.setdefault(event.key, event)
    return list(found.values())


def until_written(workspace: Workspace, name: str, count: int, word: str) -> None:
    """Wait until so many pods of a job have written a word."""
    workspace.until(
        lambda: sum(word in said for said in logs(workspace, name)) == count,
        f"{count} pods of {name} write {word}",
    )
