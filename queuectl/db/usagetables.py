"""The usage ledger's tables: marks, meters, and their sums by hour.

``usage_marks`` are written by commits and folded into the others by :mod:`queuectl.control.leader.accounting`. The ledger refers to no
other table, so it does not depend on the deletion of other rows.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Identity, Index, Table, Uuid

from queuectl.db.columns import amount, integer, json, key, metadata, seconds, single_row, words
from queuectl.domain.accounting import MILLISECONDS, UNITS

usage_marks: Final = Table(
    "usage_marks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    key("uid"),
    json("mark"),
    comment="changes of activity, until they are added to usage_hours",
)

usage_meters: Final = Table(
    "usage_meters",
    metadata,
    key("uid", primary=True),
    json("meter"),
    comment="activity of each live workload since its last mark",
)

usage_subjects: Final = Table(
    "usage_subjects",
    metadata,
    Column("id", Uuid, primary_key=True),
    key("uid"),
    words("kind"),
    key("namespace"),
    key("name"),
    key("queue"),
    key("cluster_queue"),
    key("cohort"),
    key("user"),
    json("labels"),
    comment="a workload under one queue, cohort, user and set of labels",
)
Index("usage_subjects_uid_idx", usage_subjects.c.uid)

_GPU_SECONDS: Final = ("allocated", "used", "idle", "stuck", "unknown", "waited", "unpriced")
WHOLE: Final = {"waiting": float(MILLISECONDS), **dict.fromkeys(_GPU_SECONDS, float(UNITS))}
"""Amounts that are whole numbers when they are multiplied by this. A row has the nearest double precision number.

Rounding gives the whole number again, up to 2**51 units: 6,200 GPU-hours of one workload in one hour.
"""

usage_hours: Final = Table(
    "usage_hours",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", Uuid, primary_key=True),
    key("flavor", primary=True),
    key("price", primary=True),
    *map(
        amount,
        ("allocated", "used", "idle", "stuck", "unknown", "waited", "waiting", "cost", "unpriced"),
    ),
    comment="GPU-seconds by hour; waiting in seconds, cost in money; hour is its start in unix seconds",
    postgresql_with={
        "fillfactor": 70
    },  # rows of the current hour are updated repeatedly: HOT updates
)
Index("usage_hours_subject_idx", usage_hours.c.subject)

usage_losses: Final = Table(
    "usage_losses",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", Uuid, primary_key=True),
    key("flavor", primary=True),
    key("reason", primary=True),
    amount("gpu_seconds"),
    integer("evictions"),
    comment="work that evictions lost",
)

usage_fleet: Final = Table(
    "usage_fleet",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    key("flavor", primary=True),
    *map(amount, ("seconds", "capacity", "free", "fragmented", "stranded", "inside")),
    comment="GPU-seconds of nodes: capacity, free, and unusable for any gang; seconds that were observed",
)

usage_cluster: Final = Table(
    "usage_cluster",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    *map(integer, ("physical", "unallocated", "unmanaged", "unhealthy")),
    comment="all GPUs of the cluster by hour, in units of the usage ledger; gangs hold the rest",
)

usage_progress: Final = single_row(
    "usage_progress",
    seconds("until", nullable=True),
    comment="end of the time that usage_hours accounts for; null = none",
)
