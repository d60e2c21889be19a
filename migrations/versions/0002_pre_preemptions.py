"""The preemptions of each workload in the last day, and the number of pods with which a podset starts.

The controller needs the preemptions for minimum run times and limits on evictions. The number of pods is null for a podset that starts
with all its pods.
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
    comment = "the number of pods that start; null = all pods of the podset"
    op.add_column("placements", sa.Column("pods", sa.Integer(), nullable=True, comment=comment))
