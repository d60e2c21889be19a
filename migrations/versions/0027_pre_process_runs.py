"""How processes have ended, and the units of input that ended one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027_pre"
down_revision = "0026_pre"
branch_labels = None
depends_on = None

_LEADERSHIP = "a commit must name this epoch"


def upgrade() -> None:
    """Replicas of the release before write neither."""
    op.create_table(
        "process_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("how", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("process_runs_pkey")),
        comment="the newest runs of processes and how they ended; epoch of a process that leads",
    )
    op.add_column(
        "leadership",
        sa.Column(
            "suspects",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
    )
    op.add_column("leadership", sa.Column("tried_at", sa.Double(), nullable=True))
    op.create_table_comment(
        "leadership",
        f"{_LEADERSHIP}; suspects are units of input that ended a process",
        existing_comment=_LEADERSHIP,
    )
