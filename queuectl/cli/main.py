"""``queuectl``: the table of commands, and how any of them ends when it fails."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.interpreter import tune_interpreter
from queuectl.cli.lazy import PANEL_CLIENT, PANEL_OFFLINE, PANEL_SERVER, LazyCommand, lazy_group
from queuectl.domain.errors import BadInput, QueuectlError

MOUNTS: Final = {
    "serve": LazyCommand("queuectl.cli.serve:serve_command", "Run the controller.", PANEL_SERVER),
    "demo": LazyCommand(
        "queuectl.cli.demo:demo_command", "See it all on this machine.", PANEL_SERVER
    ),
    "localcluster": LazyCommand(
        "queuectl.localcluster.commands:app",
        "A real Kubernetes control plane on this machine.",
        PANEL_SERVER,
    ),
    "recover": LazyCommand(
        "queuectl.cli.recover:recover_command",
        "Make the queue state again from the cluster, after the database was lost.",
        PANEL_SERVER,
    ),
    "db": LazyCommand("queuectl.cli.db:app", "The database and its schema.", PANEL_SERVER),
    "apply": LazyCommand(
        "queuectl.cli.apply:apply_command", "Create or replace configuration.", PANEL_CLIENT
    ),
    "delete": LazyCommand(
        "queuectl.cli.delete:delete_command", "Delete configuration.", PANEL_CLIENT
    ),
    "get": LazyCommand(
        "queuectl.cli.get:get_command",
        "List, read or watch workloads, queues, nodes, events.",
        PANEL_CLIENT,
    ),
    "describe": LazyCommand(
        "queuectl.cli.describe:describe_command", "One object in full, for people.", PANEL_CLIENT
    ),
    "explain": LazyCommand(
        "queuectl.cli.explain:explain_command", "Why a workload is where it is.", PANEL_CLIENT
    ),
    "top": LazyCommand(
        "queuectl.cli.top:top_command", "Queues and gangs, live: who holds what.", PANEL_CLIENT
    ),
    "history": LazyCommand(
        "queuectl.cli.history:history_command", "What happened to a workload.", PANEL_CLIENT
    ),
    "hold": LazyCommand(
        "queuectl.cli.ask:hold_command", "Keep a workload from starting.", PANEL_CLIENT
    ),
    "release": LazyCommand("queuectl.cli.ask:release_command", "End a hold.", PANEL_CLIENT),
    "requeue": LazyCommand(
        "queuectl.cli.ask:requeue_command",
        "End a back-off, or evict and queue again.",
        PANEL_CLIENT,
    ),
    "preempt": LazyCommand(
        "queuectl.cli.ask:preempt_command",
        "Evict a running workload for whoever is next.",
        PANEL_CLIENT,
    ),
    "deactivate": LazyCommand(
        "queuectl.cli.ask:deactivate_command", "Give a workload up.", PANEL_CLIENT
    ),
    "activate": LazyCommand(
        "queuectl.cli.ask:activate_command", "End a deactivation.", PANEL_CLIENT
    ),
    "priority": LazyCommand(
        "queuectl.cli.ask:priority_command", "Set a workload's priority.", PANEL_CLIENT
    ),
    "move": LazyCommand(
        "queuectl.cli.ask:move_command",
        "Move a waiting workload to another LocalQueue.",
        PANEL_CLIENT,
    ),
    "stop": LazyCommand(
        "queuectl.cli.stop:stop_command",
        "Keep the gangs of a queue from starting.",
        PANEL_CLIENT,
    ),
    "resume": LazyCommand(
        "queuectl.cli.stop:resume_command", "Let the gangs of a queue start again.", PANEL_CLIENT
    ),
    "whatif": LazyCommand(
        "queuectl.cli.whatif:whatif_command",
        "Try out jobs, quotas, drained or more nodes.",
        PANEL_CLIENT,
    ),
    "report": LazyCommand(
        "queuectl.cli.report:report_command",
        "GPU-hours, cost, waste and waits, by whom.",
        PANEL_CLIENT,
    ),
    "doctor": LazyCommand(
        "queuectl.cli.doctor.command:doctor_command",
        "What is wrong, and how to mend it.",
        PANEL_CLIENT,
    ),
    "config": LazyCommand(
        "queuectl.cli.config:app", "All configuration: keep it in files, and compare.", PANEL_CLIENT
    ),
    "audit": LazyCommand(
        "queuectl.cli.audit:audit_command", "Who changed what, and was refused.", PANEL_CLIENT
    ),
    "plan": LazyCommand(
        "queuectl.cli.plan:plan_command", "Plan files of ordinary objects.", PANEL_OFFLINE
    ),
    "completion": LazyCommand(
        "queuectl.cli.completion:completion_command",
        "What makes a shell complete commands.",
        PANEL_OFFLINE,
    ),
}

app = typer.Typer(
    cls=lazy_group(MOUNTS),
    help="Gang scheduling queues for GPU training on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"queuectl {version('queuectl')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Gang scheduling queues for GPU training on Kubernetes."""


def run() -> None:
    """Run the program; every error it raises on purpose becomes a sentence and an exit code."""
    tune_interpreter()
    try:
        app()
    except QueuectlError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: QueuectlError) -> Exit:
    """The exit code that goes with an error."""
    if isinstance(error, CommandFailed):
        return error.code
    return Exit.BAD_INPUT if isinstance(error, BadInput) else Exit.FAILURE
