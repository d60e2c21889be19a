"""Free GPUs that pods cannot use because of devices inside nodes, in the usage ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022_pre"
down_revision = "0021_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replicas of the release before do not write the column."""
    op.add_column(
        "usage_fleet",
        sa.Column("inside", sa.Double(), server_default=sa.text("0"), nullable=False),
    )
