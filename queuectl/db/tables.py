"""The tables: those of the ledger and its neighbors, and those of the usage ledger.

Times are unix seconds (``to_timestamp(queued_at)`` in SQL) so that values return exactly as they went. Names sort by code
point (``COLLATE "C"``), so that order is the same on every server.

One workload is one row of ``workloads`` plus, while it has them, rows of ``placements``, ``leases`` and ``outbox``; all
four change only together, by the leader, in :meth:`queuectl.db.store.PostgresLeaderStore.commit`. ``history`` only grows.
``reservations`` has the placements of Reservations and is written with them.
``refused_plans`` holds plans that the verifier refused, and ``set_aside_objects`` objects that caused an error. ``past_use`` holds samples
of the leader, and ``findings`` its results for standbys. No table refers to these three.
``commands`` is the only table in which other processes ask the leader for changes.
``notifications`` has events for receivers. The leader adds them in the transaction of the change, and any replica delivers them:
``notification_progress`` has its cursors. ``announced_budgets`` has the limits of budgets of which events were written. The API writes
``subscriptions`` and ``addresses``.
``sessions`` and ``audit`` are the REST API's own; nothing refers to them. No extension of Postgres is used.

``usage_marks`` are written by commits and folded into the tables of hours by :mod:`queuectl.control.leader.accounting`. The usage ledger
refers to no other table, so it does not depend on the deletion of other rows. The same holds for the tables of shadow mode.

A change here needs a revision in ``migrations/``; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from queuectl.domain.accounting import MILLISECONDS, UNITS

# ---- Types of columns

metadata: Final = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "pk": "%(table_name)s_pkey",
    }
)
NOW: Final = func.extract("epoch", func.clock_timestamp())
"""Unix seconds by the clock of the server."""
NOW_ONCE: Final = select(NOW).scalar_subquery()
"""The same, read once in a statement, so that a comparison with it can use an index."""


def key(name: str, *, primary: bool = False) -> Column[str]:
    """A name, sorted by code point."""
    return Column(name, Text(collation="C"), primary_key=primary, nullable=False)


def words(name: str) -> Column[str]:
    """Text that is never a sort key."""
    return Column(name, Text, nullable=False)


def integer(name: str) -> Column[int]:
    """A whole number of 64 bits."""
    return Column(name, BigInteger, nullable=False)


def seconds(name: str, *, nullable: bool = False) -> Column[float]:
    """A time in unix seconds, or a duration."""
    return Column(name, Double, nullable=nullable)


def json(name: str, *, nullable: bool = False) -> Column[Any]:
    """A document; Python's None is SQL's NULL."""
    return Column(name, JSONB(none_as_null=True), nullable=nullable)


def amount(name: str) -> Column[float]:
    """An amount: GPU-seconds or money."""
    return Column(name, Double, nullable=False)


def _single_row(name: str, *columns: Column[Any], comment: str) -> Table:
    """A table with exactly one row, which its migration inserts."""
    return Table(
        name,
        metadata,
        Column("singleton", Boolean, primary_key=True, server_default=text("true")),
        *columns,
        CheckConstraint("singleton", name="singleton"),
        comment=comment,
    )


# ---- The ledger and its neighbors

workloads: Final = Table(
    "workloads",
    metadata,
    key("uid", primary=True),
    integer("version"),
    words("kind"),
    key("namespace"),
    key("name"),
    words("state"),
    words("queue"),
    words("cluster_queue"),
    integer("priority"),
    integer("gpu_parts"),
    integer("pods"),
    integer("attempt"),
    seconds("queued_at"),
    seconds("since"),
    seconds("requeue_at", nullable=True),
    seconds("started_at", nullable=True),
    seconds("ready_at", nullable=True),
    seconds("finished_at", nullable=True),
    integer("failures"),
    integer("evictions"),
    json("preempted_at"),
    integer("budget"),
    json("excluded"),
    words("reason_code"),
    words("reason_message"),
    json("reason_details"),
    seconds("requeued_at", nullable=True),
    seconds("unready_since", nullable=True),
    seconds("past_seconds"),
    seconds("stop_at", nullable=True),
    Column("evicted_for", Text),
    json("parked", nullable=True),
    json("gates"),
    Column("priority_set", BigInteger),
    seconds("priority_until", nullable=True),
    Column("queue_set", Text),
    json("planned", nullable=True),
    json("planned_start", nullable=True),
    json("checks", nullable=True),
    key("user"),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    json("notify", nullable=True),
    seconds("announced_start", nullable=True),
    postgresql_with={
        "fillfactor": 70
    },  # room for the next version of a row on its page: HOT updates
)


# The leader loads live rows only; the number of finished rows must not matter. A finish time is set exactly in state Finished. A
# condition on the state puts each change of state into all four indexes (no HOT update).
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


# The list of one user's workloads.
Index(
    "workloads_user_idx",
    workloads.c.user,
    workloads.c.namespace,
    workloads.c.name,
    workloads.c.uid,
)


# The newest of the workloads that have not finished are first in lists. The condition and the columns change with no state.
Index(
    "workloads_newest_idx",
    workloads.c.queued_at,
    workloads.c.namespace,
    workloads.c.name,
    workloads.c.uid,
    postgresql_where=workloads.c.finished_at.is_(None),
)


# Lists are selected by labels of the jobs.
Index("workloads_labels_idx", workloads.c.labels, postgresql_using="gin")


# Expired rows are found by their finish time. A row enters this index once, when it finishes.
Index(
    "workloads_finished_idx",
    workloads.c.finished_at,
    postgresql_where=workloads.c.finished_at.is_not(None),
)


# A part of a name of a finished workload is found by its trigrams. A row enters this index once, when it finishes: it needs 65 bytes and
# about 40 microseconds. Workloads that have not finished are searched in memory (queuectl.api.search).


def name_trigrams(columns: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[Any]:
    """The distinct sequences of three characters of ``namespace/name``; the migration creates the function."""
    return func.name_trigrams(columns.namespace, columns.name)


Index(
    "workloads_search_idx",
    name_trigrams(workloads.c),
    postgresql_using="gin",
    postgresql_where=workloads.c.finished_at.is_not(None),
)


placements: Final = Table(
    "placements",
    metadata,
    key("uid", primary=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    key("podset", primary=True),
    Column("ordinal", Integer, nullable=False, comment="position of the podset in the workload"),
    Column("nodes", JSONB, nullable=False, comment="[[node, pods], ...] in rank order"),
    Column("flavors", JSONB, nullable=False, comment="{resource: ResourceFlavor}"),
    Column("pods", Integer, comment="the number of pods that start; null = all pods of the podset"),
    Column(
        "shares",
        JSONB(none_as_null=True),
        comment="[[pods, {resource: ResourceFlavor}], ...] by rank; null = not split over flavors",
    ),
)
leases: Final = Table(
    "leases",
    metadata,
    key("uid", primary=True),
    json("placement"),
    json("victims"),
    seconds("created_at"),
    seconds("expires_at"),
    comment="CapacityLeases: uid is the preemptor",
)
outbox: Final = Table(
    "outbox",
    metadata,
    key("uid", primary=True),
    integer("attempt"),
    words("intent"),
    words("reason"),
    seconds("created_at"),
    integer("epoch"),
    comment="cluster writes not yet confirmed by the watch",
)
history: Final = Table(
    "history",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    key("uid"),
    words("kind"),
    key("namespace"),
    key("name"),
    seconds("at"),
    integer("epoch"),
    integer("cycle"),
    integer("attempt"),
    words("event"),
    Column("from_state", Text),
    words("to_state"),
    words("code"),
    words("message"),
    json("details"),
    json("placement", nullable=True),
    comment="append-only; a trigger refuses UPDATE, DELETE and TRUNCATE",
)


Index("history_uid_id_idx", history.c.uid, history.c.id)


# A new leader reads the cost of moves in the last day. Few lines of history are moves.
Index("history_moves_idx", history.c.at, postgresql_where=history.c.event == text("'Defragmented'"))


# The log of evictions is as long as history. Tenants read it by namespace.
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
    key("uid"),
    words("action"),
    Column("priority", BigInteger),
    words("by"),
    Column("request_id", Text(collation="C"), nullable=False, unique=True),
    seconds("at"),
    Column("outcome", Text, comment="null until the leader has executed the command"),
    seconds("until", nullable=True),
    Column("queue", Text),
    words("why"),
    Column("admin", Boolean, nullable=False),
    json("report", nullable=True),
    comment="commands on workloads: the API writes them, the leader executes them",
)


Index("commands_uid_id_idx", commands.c.uid, commands.c.id)


Index(
    "commands_open_idx",
    commands.c.uid,
    commands.c.id,
    postgresql_where=commands.c.outcome.is_(None),
)


past_use: Final = Table(
    "past_use",
    metadata,
    key("scope", primary=True),
    key("key", primary=True),
    key("resource", primary=True),
    Column("value", Double, nullable=False),
    seconds("at"),
    comment="decayed use at a time; scope is LocalQueue, ClusterQueue or User",
)
reservations: Final = Table(
    "reservations",
    metadata,
    key("name", primary=True),
    seconds("begins"),
    seconds("ends"),
    json("nodes"),
    words("reason"),
    seconds("earliest", nullable=True),
    comment="Reservations by the last plan of the leader; nodes is [[node, pods], ...]",
)
documents: Final = Table(
    "documents",
    metadata,
    key("kind", primary=True),
    key("namespace", primary=True),
    key("name", primary=True),
    json("document"),
    integer("version"),
    comment="configuration; version is the revision that wrote the row",
)
followed_objects: Final = _single_row(
    "followed_objects",
    json("report"),
    words("confirmed"),
    comment="the leader's last report on objects that own the configuration; confirmed is the id of a mass deletion",
)
trace_progress: Final = _single_row(
    "trace_progress",
    Column("line", BigInteger),
    comment="the id of the last line of history whose stages are exported as spans; null before the first export",
)
sessions: Final = Table(
    "sessions",
    metadata,
    key("key", primary=True),
    words("caller"),
    json("identity"),
    seconds("since"),
    Column("until", Double, nullable=False, index=True),
    comment="browser sessions; key is the hash of the value of the cookie",
)
audit: Final = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Double, nullable=False, index=True),
    words("request_id"),
    key("caller"),
    json("groups"),
    words("method"),
    words("path"),
    words("operation"),
    Column("status", Integer, nullable=True),
    words("detail"),
    Index("audit_caller_id_idx", "caller", "id"),
    comment="requests that change something; status null = begun, outcome unknown",
)
decisions: Final = Table(
    "decisions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    seconds("at"),
    integer("epoch"),
    integer("cycle"),
    integer("revision"),
    integer("history_after"),
    integer("history_upto"),
    json("counts"),
    json("reasons"),
    words("proof"),
    seconds("seconds"),
    json("stats"),
    comment="planning cycles that changed something; kept for a week",
)
refused_plans: Final = Table(
    "refused_plans",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    seconds("at"),
    integer("epoch"),
    integer("cycle"),
    json("rules"),
    integer("size"),
    Column("content", LargeBinary, nullable=False),
    comment="plans that the verifier refused, with their snapshots: the newest 20, at most 50 MiB in total",
)
set_aside_objects: Final = Table(
    "set_aside_objects",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    seconds("at"),
    integer("epoch"),
    words("boundary"),
    words("key"),
    words("ref"),
    words("error"),
    words("place"),
    integer("size"),
    Column("truncated", Boolean, nullable=False),
    Column("content", LargeBinary, nullable=False),
    comment="redacted objects of units that are set aside: the newest 20, at most 256 KiB each",
)
notifications: Final = Table(
    "notifications",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    seconds("at"),
    words("type"),
    words("kind"),
    key("namespace"),
    key("name"),
    words("uid"),
    key("cluster_queue"),
    key("user"),
    json("receivers"),
    words("message"),
    json("details"),
    comment="events for receivers, one row for each; deleted when all receivers are past them",
)
notification_progress: Final = Table(
    "notification_progress",
    metadata,
    key("receiver", primary=True),
    key("mode", primary=True),
    integer("line"),
    Column("claimed_by", Text),
    seconds("claimed_until", nullable=True),
    seconds("claimed_at", nullable=True),
    seconds("retry_at"),
    integer("failures"),
    words("error"),
    integer("delivered"),
    integer("dropped"),
    seconds("dropped_since", nullable=True),
    seconds("dropped_until", nullable=True),
    comment="how far the events of a receiver are delivered, and the replica that delivers them now",
    postgresql_with={"fillfactor": 50},  # each claim updates the row: HOT updates
)
announced_budgets: Final = Table(
    "announced_budgets",
    metadata,
    key("budget", primary=True),
    key("month", primary=True),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    seconds("at"),
    comment="limits of budgets of which an event was written; percent is 80 or 100",
)
subscriptions: Final = Table(
    "subscriptions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    key("owner"),
    words("scope"),
    key("target"),
    key("receiver"),
    json("events"),
    words("mode"),
    UniqueConstraint("owner", "scope", "target", "receiver", name="subscriptions_owner_key"),
    comment="requests of users to receive events",
)


Index("subscriptions_receiver_idx", subscriptions.c.receiver)


addresses: Final = Table(
    "addresses",
    metadata,
    key("user", primary=True),
    words("address"),
    seconds("verified_at"),
    comment="mail addresses of users, as their identity provider has verified them",
)
configuration: Final = _single_row(
    "configuration",
    integer("revision"),
    comment="the revision of the whole configuration",
)
leadership: Final = _single_row(
    "leadership",
    integer("epoch"),
    words("holder"),
    Column("taken_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    json("suspects"),
    seconds("tried_at", nullable=True),
    comment="a commit must name this epoch; suspects are units of input that ended a process",
)
findings: Final = _single_row(
    "findings",
    seconds("at"),
    json("uses"),
    json("unhealthy"),
    json("expected_starts"),
    comment="the last GPU utilization that the leader has measured, and its estimated starts",
)
shadow_gangs: Final = Table(
    "shadow_gangs",
    metadata,
    key("uid", primary=True),
    Column("last_at", Double, nullable=False, index=True),
    amount("startable"),
    amount("unbound"),
    json("record"),
    comment="shadow mode: gangs that waited, or whose pods had no node; GPU-seconds by which reports sort",
)
shadow_hours: Final = Table(
    "shadow_hours",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    json("sums"),
    comment="shadow mode: sums over the moments of an hour",
)
shadow_progress: Final = _single_row(
    "shadow_progress",
    seconds("at", nullable=True),
    json("last", nullable=True),
    comment="shadow mode: the last moment; null = none",
)
shadow_trace: Final = Table(
    "shadow_trace",
    metadata,
    key("uid", primary=True),
    Column("gone_at", Double, nullable=True, index=True),
    json("record"),
    comment="shadow mode: gangs with their requests and attempts; gone_at null = in the cluster",
)
shadow_nodes: Final = Table(
    "shadow_nodes",
    metadata,
    key("name", primary=True),
    Column("at", Double, primary_key=True, autoincrement=False),
    json("record"),
    comment="shadow mode: nodes from a time on",
)
shadow_span: Final = _single_row(
    "shadow_span",
    json("span", nullable=True),
    json("simulated", nullable=True),
    comment="shadow mode: the time of the trace, and the last simulated report; null = none",
)
replicas: Final = Table(
    "replicas",
    metadata,
    key("name", primary=True),
    words("release"),
    words("revision"),
    seconds("started_at"),
    seconds("seen_at"),
    comment="processes that use the database; revision is the newest one that their release knows",
)
process_runs: Final = Table(
    "process_runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    words("name"),
    words("release"),
    Column("epoch", BigInteger),
    seconds("began_at"),
    seconds("ended_at", nullable=True),
    words("how"),
    comment="the newest runs of processes and how they ended; epoch of a process that leads",
)
schema_requirement: Final = _single_row(
    "schema_requirement",
    words("revision"),
    comment="the last post revision, or the first revision; a release that does not know it cannot use the schema",
)

# ---- The usage ledger

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
_ALL_UPDATED: Final = {"fillfactor": 45}
"""One transaction updates all new rows of a page, once a minute: HOT updates need room for a second version of each."""
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
    postgresql_with=_ALL_UPDATED,
)


Index("usage_hours_subject_idx", usage_hours.c.subject)


usage_summed: Final = Table(
    "usage_summed",
    metadata,
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    integer("until"),
    comment="days whose sums are in usage_days and usage_queues, of the hours before until; a trigger deletes a day of which such an hour changes",
)


def _day(*, primary: bool = False) -> Column[int]:
    """A day whose sums are deleted with it."""
    return Column(
        "day",
        BigInteger,
        ForeignKey("usage_summed.day", ondelete="CASCADE"),
        primary_key=primary,
        autoincrement=False,
        nullable=False,
    )


COUNTS: Final = ("workloads", "by_flavor", "by_price")
"""Columns of each table of sums: their sums over any rows count the workloads, by flavor if the rows are of one, and by price."""


def _sums() -> list[Column[Any]]:
    """Amounts in units, and numbers of workloads. A day of 1.1 million GPUs has more units than 64 bits."""
    units = (Column(name, Numeric, nullable=False) for name in WHOLE)
    return [*units, amount("cost"), *map(integer, COUNTS)]


usage_days: Final = Table(
    "usage_days",
    metadata,
    _day(),
    *map(key, ("namespace", "queue", "cluster_queue", "cohort", "user")),
    json("labels"),
    *map(key, ("flavor", "price")),
    *_sums(),
    comment="sums of usage_hours by day, in units; workloads that have rows of these hours and of one subject only are counted once",
)


Index("usage_days_day_idx", usage_days.c.day)


usage_queue_days: Final = Table(
    "usage_queue_days",
    metadata,
    _day(primary=True),
    *(key(name, primary=True) for name in ("namespace", "queue", "cluster_queue", "cohort")),
    *(key(name, primary=True) for name in ("flavor", "price")),
    *_sums(),
    comment="sums of usage_days over all users and labels",
)


usage_queues: Final = Table(
    "usage_queues",
    metadata,
    _day(primary=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    *(key(name, primary=True) for name in ("namespace", "queue", "cluster_queue", "cohort")),
    *(key(name, primary=True) for name in ("flavor", "price")),
    *_sums(),
    comment="sums of usage_hours by hour and LocalQueue, in units; workloads of one subject only are counted once in each hour",
)


usage_spanning: Final = Table(
    "usage_spanning",
    metadata,
    _day(primary=True),
    Column("subject", Uuid, primary_key=True),
    key("flavor", primary=True),
    key("price", primary=True),
    *map(key, ("uid", "namespace", "queue", "cluster_queue", "cohort", "user")),
    json("labels"),
    Column("moved", Boolean, nullable=False),
    comment="rows of a day whose workloads usage_days does not count: they have other hours or subjects, or can get some",
)


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
usage_containers: Final = Table(
    "usage_containers",
    metadata,
    key("uid", primary=True),
    seconds("until"),
    *map(
        amount,
        (
            *("pod_seconds", "cpu_seconds", "cpu_requested"),
            *("memory_seconds", "memory_requested", "memory_peak"),
        ),
    ),
    comment="CPU and memory of the pods of each workload, over the time that was measured: core-seconds and byte-seconds; memory_peak in bytes, of one pod",
    postgresql_with={"fillfactor": 70},  # each row is updated once a minute: HOT updates
)
usage_curves: Final = Table(
    "usage_curves",
    metadata,
    key("uid", primary=True),
    seconds("begins"),
    amount("spacing"),
    Column("content", LargeBinary, nullable=False),
    comment="GPU-seconds of each workload over time, at most 96 points of spacing seconds: held, measured and used, as 4-byte floats",
    postgresql_with=_ALL_UPDATED,
)
usage_progress: Final = _single_row(
    "usage_progress",
    seconds("begins", nullable=True),
    seconds("until", nullable=True),
    comment="the time in which the cluster was accounted for; null = none",
)
