"""``queuectl demo``: a local control plane, a minute of gangs, and an audit of the result."""

from __future__ import annotations

from typing import Annotated

import typer


def demo_command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, and show commands to try.")
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="Stop what --keep left running.")] = False,
) -> None:
    """Start a control plane on this machine, and watch gangs queue, start, preempt and finish.

    KWOK simulates 64 nodes with 8 GPUs each. The API server, the scheduler, the controllers, the training operator, Postgres
    and queuectl are real. The exit code is 0 if all checks of the cluster pass.
    """
    from rich.console import Console

    from queuectl.cli.errors import CommandFailed
    from queuectl.cli.options import check_exclusive
    from queuectl.demo import demo_run
    from queuectl.localcluster import LocalClusterError

    console = Console()
    check_exclusive(keep=keep, down=down)
    try:
        held = demo_run.down(console) if down else demo_run.run(console, keep=keep, report=_report)
    except LocalClusterError as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        removed = "Everything is stopped and removed."
        rest = "Repeat the command to remove the rest." if down else removed
        console.print(f"\nInterrupted. {rest}")
        raise typer.Exit(130) from None
    if not held:
        raise typer.Exit(1)


def _report(server: str) -> None:
    """Print the usage report of the last minute."""
    from queuectl.cli.report import ReportFormat, report_command
    from queuectl.domain.usage_reports import ReportKind

    typer.echo("\n$ queuectl report usage --by queue")
    report_command(ReportKind.USAGE, output=ReportFormat.TABLE, server=server)
