"""When each workload was preempted in the last day, and with how many pods a podset starts.

By the first, minimum run times and caps on evictions are judged. The second is null for a podset that starts with all.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002_pre"
down_revision = "0001_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """With a default, so that the code before it can go on adding rows."""
    made = sa.text("'[]'::jsonb")
    column = sa.Column("preempted_at", JSONB(), nullable=False, server_default=made)
    op.add_column("workloads", column)
    comment = "with how many it starts; null = with all of the podset"
    op.add_column("placements", sa.Column("pods", sa.Integer(), nullable=True, comment=comment))
