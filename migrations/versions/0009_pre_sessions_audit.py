"""Browser sessions, and an audit record for each request that changes something."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009_pre"
down_revision = "0008_pre"
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("key", KEY, nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("identity", JSONB(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="sessions_pkey"),
        comment="browser sessions; key is the hash of the value of the cookie",
    )
    op.create_index("sessions_until_idx", "sessions", ["until"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("caller", KEY, nullable=False),
        sa.Column("groups", JSONB(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="audit_pkey"),
        comment="requests that change something; status null = begun, outcome unknown",
    )
    op.create_index("audit_at_idx", "audit", ["at"])
    op.create_index("audit_caller_id_idx", "audit", ["caller", "id"])
