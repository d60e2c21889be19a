"""The output of ``queuectl simulate`` as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from queuectl.cli import terminal
from queuectl.cli.render import natural_width
from queuectl.simulate.amounts import over_time_table, tables

if TYPE_CHECKING:
    from queuectl.simulate.amounts import Table as Titled
    from queuectl.simulate.results import Outcome


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print the policies, the queues and the sizes of jobs, and of one policy the state over time."""
    listed = tables(outcomes)
    if len(outcomes) == 1:
        listed.append(over_time_table(outcomes[0]))
    print_tables(listed)


def print_tables(listed: list[Titled]) -> None:
    """Print tables of texts, the first column at the left."""
    console = terminal.console(soft_wrap=True)
    made = []
    for title, columns, rows in listed:
        table = Table(title=title, box=None, title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        made.append(table)
    if not console.is_terminal:
        console.width = max([console.width, *map(natural_width, made)])
    for table in made:
        console.print(table)
        console.print()
