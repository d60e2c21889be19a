"""Takes the pictures of Grafana and of the dashboard for the documentation, in about ten minutes::

    python -m tests.system.pictures [--answers FILE] [FOLDER]

Three teams run gangs on 512 simulated GPUs for a few minutes (tests/system/picture_run.py). A real Prometheus answers the queries
of the panels, and Grafana's own components render the results (tests/grafana). The pages of the dashboard are taken from queuectl
at the end of the run. With ``--answers``, the results of the queries are kept in a file. If the file exists, it is rendered
without another run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.grafana.answers import Answers
from tests.grafana.render import rendered
from tests.support.screenshots import IMAGES, save
from tests.system.picture_run import Load, stage
from tests.system.ui_pictures import save_all

BOARDS: Final = Path(__file__).parents[2] / "deploy" / "chart" / "dashboards"
MINUTES: Final = 6.0


def answers(folder: Path) -> dict[str, Any]:
    """Runs the gangs, takes the pages of the dashboard, and returns the results of all queries."""
    with stage() as (built, prometheus, exporters):
        since = time.time()
        with Load(built, exporters, MINUTES, Random(7)).running():
            time.sleep(60 * MINUTES)
            asked = Answers(prometheus.url, since, time.time())
            boards = [json.loads(path.read_text()) for path in sorted(BOARDS.glob("*.json"))]
            document = asked.document(boards)
            save_all(built, folder)
        return document


def main(folder: Path, kept: Path | None) -> None:
    if kept is not None and kept.exists():
        document = json.loads(kept.read_text())
    else:
        document = answers(folder)
        if kept is not None:
            kept.write_text(json.dumps(document))
    for uid, screenshot in rendered(document):
        save(screenshot, folder / f"{uid.replace('queuectl-', 'dashboard-')}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.answers)
