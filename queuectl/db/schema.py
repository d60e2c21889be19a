"""The schema whole: the metadata once every module of tables has put its own in, as alembic compares it."""

from __future__ import annotations

from queuectl.db import tables, usagetables
from queuectl.db.columns import metadata

__all__ = ["metadata", "tables", "usagetables"]
