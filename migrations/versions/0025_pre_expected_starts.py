"""The expected starts of pending gangs as ranges, for standbys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025_pre"
down_revision = "0024_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Leaders of the release before do not write it."""
    op.add_column(
        "findings",
        sa.Column(
            "expected_starts",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
    )
