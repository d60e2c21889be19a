"""Writes docs/reference/openapi.json again: ``uv run python -m tests.api.renew_openapi``."""

from __future__ import annotations

import json
from pathlib import Path

from queuectl.api.app import create_app
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedHealth
from tests.doubles.store import MemoryStore

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def main() -> None:
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry)
    COMMITTED.write_text(json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
