"""The replicas that use the database, with their releases, and the revision that a release must know to use it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_pre"
down_revision = "0017_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before write neither table."""
    op.create_table(
        "replicas",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("replicas_pkey")),
        comment="processes that use the database; revision is the newest one that their release knows",
    )
    op.create_table(
        "schema_requirement",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("schema_requirement_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("schema_requirement_pkey")),
        comment="the last post revision; a release that does not know it cannot use the schema",
    )
    op.execute("INSERT INTO schema_requirement (revision) VALUES ('')")
