"""``queuectl demo``: a real control plane, a rush of gangs, and an audit of what became of them."""

from __future__ import annotations

from typing import Annotated

import typer


def demo_command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything up, and say what to try.")
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="Take down what --keep left.")] = False,
) -> None:
    """Bring up a control plane on this machine and watch gangs queue, start whole, preempt and finish.

    64 nodes with 8 GPUs each, played by KWOK; the API server, the scheduler, the controllers, the training operator,
    Postgres and queuectl are real. Reports of the usage ledger follow. Ends with 0 when every check on the cluster held.
    """
    from rich.console import Console

    from queuectl.cli.errors import CommandFailed, Exit
    from queuectl.demo import demo_run
    from queuectl.localcluster import LocalClusterError

    console = Console()
    if keep and down:
        raise CommandFailed("--keep and --down exclude each other", Exit.BAD_INPUT)
    try:
        held = demo_run.down(console) if down else demo_run.run(console, keep=keep, report=_report)
    except LocalClusterError as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        console.print("\nInterrupted; nothing is left behind.")
        raise typer.Exit(130) from None
    if not held:
        raise typer.Exit(1)


def _report(server: str) -> None:
    """Where the GPU-hours of the last minute went."""
    from queuectl.cli.report import Form, report_command
    from queuectl.domain.reports import ReportKind

    typer.echo("\n$ queuectl report usage --by queue")
    report_command(ReportKind.USAGE, "queue", "24h", None, Form.TABLE, server)
