"""Room on each page for the versions of rows that one transaction updates, so that the updates change no index."""

from __future__ import annotations

from alembic import op

revision = "0112_pre"
down_revision = "0111_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("usage_hours", "usage_curves"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 45)")
