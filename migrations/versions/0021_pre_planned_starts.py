"""The planned starts of pending gangs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021_pre"
down_revision = "0020_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before do not write the column."""
    op.add_column(
        "workloads",
        sa.Column("planned_start", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    )
