"""The whole schema: the metadata of all modules with tables, which alembic compares."""

from __future__ import annotations

from queuectl.db import tables, usagetables
from queuectl.db.columns import metadata

__all__ = ["metadata", "tables", "usagetables"]
