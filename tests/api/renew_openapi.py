"""Writes openapi.json in docs/reference again, the types of the client, and the codes of plan-schema.json.

``python -m tests.api.renew_openapi``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from queuectl.api.app import create_app
from queuectl.domain.diagnosis import Limit, Remedy
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api import wire_types
from tests.api.support import FixedHealth
from tests.doubles.store import MemoryStore

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
COMMITTED = REFERENCE / "openapi.json"
PLAN_SCHEMA = REFERENCE / "plan-schema.json"
CODES = {"obstacle": Limit, "way": Remedy}
"""Definitions of the schema of plans to the codes that they can have."""


def main() -> None:
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry)
    write(COMMITTED, app.openapi())
    wire_types.WRITTEN.write_text(wire_types.source(app.openapi()))
    write(PLAN_SCHEMA, plan_schema())


def plan_schema() -> dict[str, Any]:
    """The schema of plans, with all codes."""
    schema: dict[str, Any] = json.loads(PLAN_SCHEMA.read_text())
    for name, codes in CODES.items():
        schema["$defs"][name]["properties"]["code"]["enum"] = [code.value for code in codes]
    return schema


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
