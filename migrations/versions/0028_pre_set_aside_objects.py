"""Objects of units that are set aside because of an unexpected error, for the analysis of the defect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028_pre"
down_revision = "0027_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before do not write it."""
    op.create_table(
        "set_aside_objects",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("boundary", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("set_aside_objects_pkey")),
        comment="redacted objects of units that are set aside: the newest 20, at most 256 KiB each",
    )
