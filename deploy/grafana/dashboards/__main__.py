"""Write every dashboard as JSON: ``python -m deploy.grafana.dashboards [FOLDER]``, by default those of the chart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.dashboards.board import Board
from deploy.grafana.dashboards.controller import CONTROLLER
from deploy.grafana.dashboards.gangs import GANGS
from deploy.grafana.dashboards.overview import OVERVIEW
from deploy.grafana.dashboards.queues import QUEUES
from deploy.grafana.dashboards.utilization import UTILIZATION

FOLDER: Final = Path(__file__).parents[2] / "chart" / "dashboards"
BOARDS: Final = (OVERVIEW, QUEUES, GANGS, UTILIZATION, CONTROLLER)


def rendered(board: Board) -> str:
    """As committed: sorted, so that a diff shows what changed."""
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def main(folder: Path) -> None:
    """Write them all."""
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(rendered(board))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
