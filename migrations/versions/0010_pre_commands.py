"""Priorities with an end, moves to another LocalQueue, reasons and results of commands."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_pre"
down_revision = "0009_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nullable columns and a constant default need no rewrite; the old code leaves them alone."""
    op.add_column("workloads", sa.Column("priority_until", sa.Double()))
    op.add_column("workloads", sa.Column("queue_set", sa.Text()))
    op.add_column("commands", sa.Column("until", sa.Double()))
    op.add_column("commands", sa.Column("queue", sa.Text()))
    op.add_column(
        "commands", sa.Column("why", sa.Text(), nullable=False, server_default=sa.text("''"))
    )
    op.create_index("commands_uid_id_idx", "commands", ["uid", "id"])
