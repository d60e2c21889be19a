"""The placements of Reservations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024_pre"
down_revision = "0023_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before plan without Reservations."""
    op.create_table(
        "reservations",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("begins", sa.Double(), nullable=False),
        sa.Column("ends", sa.Double(), nullable=False),
        sa.Column("nodes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("earliest", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="reservations_pkey"),
        comment="Reservations by the last plan of the leader; nodes is [[node, pods], ...]",
    )
