"""The nodes that the leader has taken out of placement because their hardware fails, for standby replicas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020_pre"
down_revision = "0019_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before do not write the column."""
    op.add_column(
        "findings",
        sa.Column(
            "unhealthy",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
    )
