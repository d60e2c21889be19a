"""The pod requests of a gang at the time of its plan. A gang never starts with other requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015_pre"
down_revision = "0014_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workloads", sa.Column("planned", JSONB(none_as_null=True), nullable=True))
