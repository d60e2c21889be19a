"""``queuectl cancel``: delete the jobs of workloads, with the rights of the user's kubeconfig.

Each deletion names the uid that queuectl shows. A job that was created later with the same name is not deleted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from queuectl.cli import complete
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Json,
    Namespace,
    Server,
    connect,
    workload_path,
    workload_ref,
    workloads,
)
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.explain import Kind
from queuectl.cli.filters import Selector, caller_of, states_of
from queuectl.cli.render import Column, emit_table
from queuectl.client.errors import NotPermitted, ObjectNotFound
from queuectl.client.requests import UNFINISHED
from queuectl.domain.words import counted, counted_gpus, gpu_count

if TYPE_CHECKING:
    import httpx2

    from queuectl.client.client import Client

_NOTICE_SECONDS: Final = 5.0
"""Time in which queuectl notices the deletion of a job."""
_POLL_SECONDS: Final = 0.3
_COLUMNS: Final = (
    Column("KIND", lambda job: job["kind"]),
    Column("NAMESPACE", lambda job: job["namespace"]),
    Column("NAME", lambda job: job["name"]),
    Column("STATE", lambda job: job["state"]),
    Column("PODS", lambda job: job["pods"]),
    Column("GPUS", lambda job: gpu_count(job["gpus"])),
)


class Cascade(StrEnum):
    """Whether the object or its pods are deleted first."""

    BACKGROUND = "background"
    FOREGROUND = "foreground"


def cancel_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="NAME or NAMESPACE/NAME of jobs.",
            autocompletion=complete.workloads,
        ),
    ] = None,
    selector: Selector = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Jobs of this LocalQueue.", autocompletion=complete.local_queues
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE,...",
            help="Jobs in these states. Can be repeated. Default: all that have not finished.",
            autocompletion=complete.states,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="USER", help="Jobs of this user.", autocompletion=complete.users),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Your own jobs.")] = False,
    kind: Kind = None,
    namespace: Namespace = None,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            "-A",
            help="Jobs of all namespaces. Default: those of the kubeconfig's namespace.",
        ),
    ] = False,
    cascade: Annotated[
        Cascade,
        typer.Option(
            help="background deletes the job and then its pods; foreground waits for its pods."
        ),
    ] = Cascade.BACKGROUND,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Delete nothing; let Kubernetes check each deletion."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete the jobs of workloads, by name or with filters.

    Shows the jobs and asks for a confirmation. Without a terminal, several jobs and filters need --yes. The deletions have the rights of
    your kubeconfig. A job that is deleted already is not an error. If some deletions fail, the others are done, and the exit code is the
    highest of all failures.
    """
    states = states_of("workloads", state or ())
    filters: dict[str, Any] = {
        "label_selector": selector,
        "queue": queue,
        "user": user,
        "state": states or None,
    }
    chosen = {name: each for name, each in filters.items() if each is not None}
    filtered = bool(chosen) or mine
    _check(names or (), filtered=filtered, everywhere=everywhere, namespace=namespace)
    if selector is not None and not selector.strip():
        raise CommandFailed("--selector: is empty, and would match each job", Exit.BAD_INPUT)
    if mine and user is not None:
        raise CommandFailed("--mine excludes --user", Exit.BAD_INPUT)
    if "Finished" in states:
        raise CommandFailed("--state: a job that has finished is not canceled", Exit.BAD_INPUT)
    with connect(server) as client:
        if not filtered:
            jobs = [_named(client, name, namespace, kind) for name in names or ()]
        else:
            scope = None if everywhere else namespace or default_namespace()
            chosen |= {
                "kind": kind,
                "namespace": scope,
                **({"user": caller_of(client)} if mine else {}),
            }
            jobs = _matching(client, chosen)
        code, targets = _targets(jobs)
        if not targets:
            if not jobs:
                where = f" in namespace {chosen['namespace']}" if chosen.get("namespace") else ""
                typer.echo(f"no job matches{where}", err=True)
            raise typer.Exit(code)
        emit_table(_COLUMNS, [target.job for target in targets], wide=False)
        typer.echo(_sum(targets))
        if not (yes or dry_run):
            _confirm(targets, several=filtered or len(jobs) > 1)
            if filtered:
                targets = _still_matching(targets, _matching(client, chosen))
        code = max(code, delete_each(client, targets, cascade, dry_run=dry_run))
    raise typer.Exit(code)


def _check(
    names: Sequence[str], *, filtered: bool, everywhere: bool, namespace: str | None
) -> None:
    """Refuse a command line that names no job, or names jobs in two ways."""
    if bool(names) == filtered:
        raise CommandFailed(
            "give names, or filters such as --selector, --queue, --state, --user and --mine, and not both",
            Exit.BAD_INPUT,
        )
    if everywhere and (names or namespace is not None):
        raise CommandFailed("--all-namespaces excludes names and --namespace", Exit.BAD_INPUT)


def _named(client: Client, name: str, namespace: str | None, kind: str | None) -> Json:
    """The workload of this name. A server cannot substitute another one."""
    job = client.get(workload_path(name, namespace), kind=kind)
    answered, requested = f"{job['namespace']}/{job['name']}", workload_ref(name, namespace)
    if answered != requested:
        raise CommandFailed(f"the server answers with {answered} instead of {requested}")
    return job


def _matching(client: Client, filters: dict[str, Any]) -> list[Json]:
    """The workloads that match and have not finished. Those of another namespace are left out: a server cannot add them."""
    scope = filters["namespace"]
    jobs = workloads(client, **{"state": UNFINISHED, **filters})
    return [job for job in jobs if scope in (None, job["namespace"])]


# ---- The objects


@dataclass(frozen=True, slots=True)
class DeletionTarget:
    """The object of a workload. ``path``: in the API of Kubernetes."""

    job: Json
    path: str

    def __str__(self) -> str:
        return f"{self.job['kind'].lower()}/{self.job['namespace']}/{self.job['name']}"


def _targets(jobs: Sequence[Json]) -> tuple[Exit, list[DeletionTarget]]:
    """The objects to delete, once each. Prints a line for each workload that has finished, or has no separate object."""
    code, targets, printed = Exit.OK, {}, set()
    for job in jobs:
        named = DeletionTarget(job, "")
        if job["state"] == "Finished":
            typer.echo(f"{named} has finished")
            continue
        try:
            targets[job["uid"]] = DeletionTarget(job, _path(job))
        except CommandFailed as error:
            code = error.code
            if str(error) not in printed:
                typer.echo(f"error: {named}: {error}", err=True)
            printed.add(str(error))
    return code, list(targets.values())


def _path(job: Json) -> str:
    """Path of the object whose uid is that of the workload.

    Raises:
        CommandFailed: the workload is a part of an object, or its kind is not built in; the message has the command of kubectl.
    """
    from queuectl.domain.arrays import parted
    from queuectl.objects import keys
    from queuectl.objects.kinds import KINDS, leaderworkerset, path
    from queuectl.objects.kinds.pods import POD, POD_GROUP

    kind, namespace, name = job["kind"], job["namespace"], job["name"]
    whole = "." not in job["uid"]
    if whole and kind in KINDS:
        return path(KINDS[kind], quote(namespace, safe=""), quote(name, safe=""))
    if whole and kind == POD:
        return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    if parted(job["uid"]) is not None:
        whole_name = name.rpartition("_")[0]
        why = f"it is one index of a {kind}, whose deletion deletes all indexes"
        command = f"{kind.lower()} {whole_name}"
    elif kind == leaderworkerset.KIND:
        why = "it is one group of a LeaderWorkerSet, whose deletion deletes all groups"
        command = f"{kind.lower()} {leaderworkerset.set_name(name)[0]}"
    elif kind == POD_GROUP:
        why, command = "it consists of pods", f"pods -l {keys.PREFIX}{keys.POD_GROUP}={name}"
    else:
        why, command = f"{kind} is not a built-in kind", f"{kind.lower()} {name}"
    raise CommandFailed(f"{why}: use `kubectl delete -n {namespace} {command}`", Exit.BAD_INPUT)


def _sum(targets: Sequence[DeletionTarget]) -> str:
    pods, gpus = (sum(target.job[field] for target in targets) for field in ("pods", "gpus"))
    return f"{counted(len(targets), 'job')} with {counted(pods, 'pod')} and {counted_gpus(gpus)}"


def _confirm(targets: Sequence[DeletionTarget], *, several: bool) -> None:
    """Ask the user on a terminal. Without one, only a single job that is named is deleted without --yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        if several:
            raise CommandFailed(
                f"standard input is not a terminal: give --yes to delete {_sum(targets)}",
                Exit.BAD_INPUT,
            )
        return
    typer.echo(f"Delete {_sum(targets)}? [y/N] ", nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing is deleted")


def _still_matching(
    targets: Sequence[DeletionTarget], jobs: Sequence[Json]
) -> list[DeletionTarget]:
    """The objects that still match after the confirmation. Prints the others: a pending job can have started."""
    uids = {job["uid"] for job in jobs}
    for target in targets:
        if target.job["uid"] not in uids:
            typer.echo(f"{target} no longer matches: not deleted")
    return [target for target in targets if target.job["uid"] in uids]


# ---- The deletions


def delete_each(
    client: Client, targets: Sequence[DeletionTarget], cascade: Cascade, *, dry_run: bool
) -> Exit:
    """Delete the objects. A refused deletion becomes a line on standard error, and the others go on.

    ``client``: of the server that listed the workloads, with the kubeconfig.
    """
    import httpx2

    from queuectl.client.kubernetes import context_of, document, failure, server_of

    server, code = server_of(context_of(client.options)), Exit.OK
    missing: list[DeletionTarget] = []
    with server.errors(), httpx2.Client(**server.arguments) as http:
        for target in targets:
            body = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": target.job["uid"]},
                "propagationPolicy": cascade.value.capitalize(),
                **({"dryRun": ["All"]} if dry_run else {}),
            }
            response = http.request(
                "DELETE", target.path, json=body, extensions=dict(server.extensions)
            )
            if response.is_success and document(response).get("kind"):
                typer.echo(f"{target} {'would be deleted' if dry_run else 'deleted'}")
            elif _is_deleted(response):
                missing.append(target)
            else:
                error = failure(response)
                typer.echo(f"error: {target}: {error}", err=True)
                code = max(code, exit_code(error))
    until = time.monotonic() + _NOTICE_SECONDS
    return max([code, *(_ended(client, target, server.context, until) for target in missing)])


def _ended(client: Client, target: DeletionTarget, context: str, until: float) -> Exit:
    """Whether queuectl has noticed the end of a job that the cluster does not have. Otherwise, the cluster is possibly another one."""
    while not _has_ended(client, target):
        if time.monotonic() >= until:
            typer.echo(
                f"error: {target}: the cluster of the kubeconfig's context {context!r} does not have it, but the server lists "
                "it: is the context of another cluster?",
                err=True,
            )
            return Exit.CONFLICT
        time.sleep(_POLL_SECONDS)
    typer.echo(f"{target} is deleted already")
    return Exit.OK


def _has_ended(client: Client, target: DeletionTarget) -> bool:
    try:
        return bool(client.workload(target.job)["state"] == "Finished")
    except (ObjectNotFound, NotPermitted):
        return True


def _is_deleted(response: httpx2.Response) -> bool:
    """Whether the object is deleted, or another one has its name now."""
    from queuectl.client.kubernetes import document

    status = document(response)
    if response.status_code == 404:
        return status.get("reason") == "NotFound"
    text = str(status.get("message"))
    return response.status_code == 409 and "UID" in text and "precondition" in text.lower()
