"""Sums of the usage ledger can have more than 64 bits."""

from __future__ import annotations

from alembic import op

revision = "0116_pre"
down_revision = "0115_pre"
branch_labels = None
depends_on = None

UNITS = ("waiting", "allocated", "used", "idle", "stuck", "unknown", "waited", "unpriced")


def upgrade() -> None:
    types = ", ".join(f"ALTER COLUMN {name} TYPE numeric" for name in UNITS)
    for table in ("usage_days", "usage_queue_days", "usage_queues"):
        op.execute(f"ALTER TABLE {table} {types}")
