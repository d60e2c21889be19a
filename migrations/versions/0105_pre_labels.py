"""The labels of jobs, by which lists are selected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0105_pre"
down_revision = "0104_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    labels = sa.Column(
        "labels",
        postgresql.JSONB(astext_type=sa.Text()),
        server_default=sa.text("'{}'"),
        nullable=False,
    )
    op.add_column("workloads", labels)
    op.create_index("workloads_labels_idx", "workloads", ["labels"], postgresql_using="gin")
