"""The states of admission checks, and the commands that report them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026_pre"
down_revision = "0025_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The release before starts no gang of a queue with admission checks."""
    for table, column in (("workloads", "checks"), ("commands", "report")):
        kind = postgresql.JSONB(none_as_null=True, astext_type=sa.Text())
        op.add_column(table, sa.Column(column, kind, nullable=True))
