"""What is stored. Times are unix seconds (``to_timestamp(queued_at)`` in SQL) so that values return exactly as they went.

One workload is one row of ``workloads`` plus, while it has them, rows of ``placements``, ``leases`` and ``outbox``; all
four change only together, by the leader, in :meth:`queuectl.db.store.PostgresStore.commit`. ``history`` only grows.
``past_use`` is what the leader samples; nothing refers to it.
``usage_marks`` are written by commits and folded into the usage ledger (the other ``usage_`` tables) by
:mod:`queuectl.control.account`; the ledger refers to no other table, so whatever else is deleted, it stays.
``commands`` is the one table in which others ask the leader for changes.
``sessions`` and ``audit`` are the REST API's own; nothing refers to them.
Names sort by code point (``COLLATE "C"``), so that order is the same on every server. No extension is used.

A change here needs a revision in ``migrations/``; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata: Final = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "pk": "%(table_name)s_pkey",
    }
)


def _key(name: str, *, primary: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), primary_key=primary, nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _integer(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _seconds(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Double, nullable=nullable)


def _json(name: str, *, nullable: bool = False, default: str | None = None) -> Column[Any]:
    made = text(f"'{default}'::jsonb") if default is not None else None
    return Column(name, JSONB(none_as_null=True), nullable=nullable, server_default=made)


workloads: Final = Table(
    "workloads",
    metadata,
    _key("uid", primary=True),
    _integer("version"),
    _text("kind"),
    _key("namespace"),
    _key("name"),
    _text("state"),
    _text("queue"),
    _text("cluster_queue"),
    _integer("priority"),
    _integer("gpus"),
    _integer("pods"),
    _integer("attempt"),
    _seconds("queued_at"),
    _seconds("since"),
    _seconds("requeue_at", nullable=True),
    _seconds("started_at", nullable=True),
    _seconds("ready_at", nullable=True),
    _seconds("finished_at", nullable=True),
    _integer("failures"),
    _integer("evictions"),
    _json("preempted_at", default="[]"),
    _integer("budget"),
    _json("excluded"),
    _text("reason_code"),
    _text("reason_message"),
    _json("reason_details"),
    _seconds("requeued_at", nullable=True),
    _seconds("unready_since", nullable=True),
    Column("past_seconds", Double, nullable=False, server_default=text("0")),
    _seconds("stop_at", nullable=True),
    Column("evicted_for", Text),
    _json("parked", nullable=True),
    _json("gates", default="[]"),
    Column("priority_set", BigInteger),
    _seconds("priority_until", nullable=True),
    Column("queue_set", Text),
    postgresql_with={
        "fillfactor": 70
    },  # room for the next version of a row on its own page: HOT again
)

# The leader's load reads live rows only; finished ones pile up and must not cost it anything. A finish time is set exactly
# in state Finished; asking for the state itself would put every change of state into all four indexes (no HOT update).
Index("workloads_live_idx", workloads.c.uid, postgresql_where=workloads.c.finished_at.is_(None))
# Listings page by (namespace, name, uid), cluster-wide or within one ClusterQueue.
Index("workloads_listing_idx", workloads.c.namespace, workloads.c.name, workloads.c.uid)
Index(
    "workloads_cluster_queue_idx",
    workloads.c.cluster_queue,
    workloads.c.namespace,
    workloads.c.name,
    workloads.c.uid,
)
# What is kept long enough is found by its finish time; a row enters this index once, when it is finished.
Index(
    "workloads_finished_idx",
    workloads.c.finished_at,
    postgresql_where=workloads.c.finished_at.is_not(None),
)

placements: Final = Table(
    "placements",
    metadata,
    _key("uid", primary=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    _key("podset", primary=True),
    Column("ordinal", Integer, nullable=False, comment="position of the podset in the workload"),
    Column("nodes", JSONB, nullable=False, comment="[[node, pods], ...] in rank order"),
    Column("flavors", JSONB, nullable=False, comment="{resource: ResourceFlavor}"),
    Column("pods", Integer, comment="with how many it starts; null = with all of the podset"),
    Column(
        "shares",
        JSONB(none_as_null=True),
        comment="[[pods, {resource: ResourceFlavor}], ...] by rank; null = not split over flavors",
    ),
)

leases: Final = Table(
    "leases",
    metadata,
    _key("uid", primary=True),
    _json("placement"),
    _json("victims"),
    _seconds("created_at"),
    _seconds("expires_at"),
    comment="CapacityLeases: uid is the preemptor",
)

outbox: Final = Table(
    "outbox",
    metadata,
    _key("uid", primary=True),
    _integer("attempt"),
    _text("intent"),
    _text("reason"),
    _seconds("created_at"),
    _integer("epoch"),
    comment="cluster writes not yet confirmed by the watch",
)

history: Final = Table(
    "history",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _key("uid"),
    _text("kind"),
    _key("namespace"),
    _key("name"),
    _seconds("at"),
    _integer("epoch"),
    _integer("cycle"),
    _integer("attempt"),
    _text("event"),
    Column("from_state", Text),
    _text("to_state"),
    _text("code"),
    _text("message"),
    _json("details"),
    _json("placement", nullable=True),
    comment="append-only; a trigger refuses UPDATE, DELETE and TRUNCATE",
)
Index("history_uid_id_idx", history.c.uid, history.c.id)
# What moving gangs has cost in the last day is read at each take-over; moves are few among very many lines.
Index("history_moves_idx", history.c.at, postgresql_where=history.c.event == text("'Defragmented'"))
# The log of evictions goes back as far as history does; a tenant's is picked out of it by namespace.
Index(
    "history_evictions_idx",
    history.c.id,
    history.c.namespace,
    postgresql_where=history.c.to_state == text("'Evicting'"),
)

commands: Final = Table(
    "commands",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _key("uid"),
    _text("action"),
    Column("priority", BigInteger),
    _text("by"),
    Column("request_id", Text(collation="C"), nullable=False, unique=True),
    _seconds("at"),
    Column("outcome", Text, comment="null until the leader has answered it"),
    _seconds("until", nullable=True),
    Column("queue", Text),
    Column("why", Text, nullable=False, server_default=text("''")),
    comment="what people asked of workloads: written by the API, answered by the leader",
)
Index("commands_uid_id_idx", commands.c.uid, commands.c.id)
Index("commands_open_idx", commands.c.id, postgresql_where=commands.c.outcome.is_(None))

past_use: Final = Table(
    "past_use",
    metadata,
    _key("scope", primary=True),
    _key("key", primary=True),
    _key("resource", primary=True),
    Column("value", Double, nullable=False),
    _seconds("at"),
    comment="decayed use as of a time; scope is LocalQueue, ClusterQueue or User",
)

usage_marks: Final = Table(
    "usage_marks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _key("uid"),
    _json("mark"),
    comment="what workloads do from a time on, until it is folded into usage_hours",
)

usage_meters: Final = Table(
    "usage_meters",
    metadata,
    _key("uid", primary=True),
    _json("meter"),
    comment="what each live workload does since its last folded mark",
)

usage_subjects: Final = Table(
    "usage_subjects",
    metadata,
    Column("id", Uuid, primary_key=True),
    _key("uid"),
    _text("kind"),
    _key("namespace"),
    _key("name"),
    _key("queue"),
    _key("cluster_queue"),
    _key("cohort"),
    _key("user"),
    _json("labels"),
    comment="on whose account: a workload under one queue, cohort, user and set of labels",
)
Index("usage_subjects_uid_idx", usage_subjects.c.uid)


def _amount(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


usage_hours: Final = Table(
    "usage_hours",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", Uuid, primary_key=True),
    _key("flavor", primary=True),
    _key("price", primary=True),
    *map(
        _amount,
        ("allocated", "used", "idle", "stuck", "unknown", "waited", "waiting", "cost", "unpriced"),
    ),
    comment="GPU-seconds by hour; waiting in seconds, cost in money; hour is its start in unix seconds",
    postgresql_with={"fillfactor": 70},  # the present hour's rows are written again and again: HOT
)
Index("usage_hours_subject_idx", usage_hours.c.subject)

usage_losses: Final = Table(
    "usage_losses",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", Uuid, primary_key=True),
    _key("flavor", primary=True),
    _key("reason", primary=True),
    _amount("gpu_seconds"),
    _integer("evictions"),
    comment="work that evictions threw away",
)

usage_fleet: Final = Table(
    "usage_fleet",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    _key("flavor", primary=True),
    *map(_amount, ("seconds", "capacity", "free", "fragmented", "stranded")),
    comment="GPU-seconds that nodes had, that were free, and that no gang could use; seconds that were looked at",
)

documents: Final = Table(
    "documents",
    metadata,
    _key("kind", primary=True),
    _key("namespace", primary=True),
    _key("name", primary=True),
    _json("document"),
    _integer("version"),
    comment="configuration; version is the revision that wrote the row",
)


sessions: Final = Table(
    "sessions",
    metadata,
    _key("key", primary=True),
    _text("caller"),
    _json("identity"),
    _seconds("since"),
    Column("until", Double, nullable=False, index=True),
    comment="browsers that showed a token; key is the hash of what their cookie holds",
)

audit: Final = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Double, nullable=False, index=True),
    _text("request_id"),
    _key("caller"),
    _json("groups"),
    _text("method"),
    _text("path"),
    _text("operation"),
    Column("status", Integer, nullable=True),
    _text("detail"),
    Index("audit_caller_id_idx", "caller", "id"),
    comment="requests that want to change something; status null = begun, outcome unknown",
)


decisions: Final = Table(
    "decisions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _seconds("at"),
    _integer("epoch"),
    _integer("cycle"),
    _integer("revision"),
    _integer("history_after"),
    _integer("history_upto"),
    _json("counts"),
    _json("reasons"),
    _text("proof"),
    _seconds("seconds"),
    _json("stats"),
    comment="planning cycles that changed something; kept for a week",
)


def _single_row(name: str, *columns: Column[Any], comment: str) -> Table:
    """A table that holds exactly one row, put there by its migration."""
    return Table(
        name,
        metadata,
        Column("singleton", Boolean, primary_key=True, server_default=text("true")),
        *columns,
        CheckConstraint("singleton", name="singleton"),
        comment=comment,
    )


configuration: Final = _single_row(
    "configuration",
    _integer("revision"),
    comment="revision of all documents together",
)

usage_progress: Final = _single_row(
    "usage_progress",
    _seconds("until", nullable=True),
    comment="until when everything is accounted for in usage_hours; null = nothing yet",
)

leadership: Final = _single_row(
    "leadership",
    _integer("epoch"),
    _text("holder"),
    Column("taken_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="the fence: who commits must name this epoch",
)
