"""A database after weeks of work: workloads that have finished, their history and usage, written with SQL.

The rows have the shape of those that a leader writes (:mod:`tests.bench.bench_database_day` measures these). Gangs arrive at an even
rate, wait ten minutes and run for an hour on average. Four fifths of them have six lines of history.
"""

from __future__ import annotations

from typing import Final

import asyncpg

GANGS_A_DAY: Final = 100_000
LAST: Final = 1_790_000_000
"""The end of the time that the rows describe, in unix seconds. It is a full hour: 1790000000 - 1790000000 % 3600."""
UNTIL: Final = LAST - LAST % 3600
NAMESPACES: Final = 60
CLUSTER_QUEUES: Final = 40
USERS: Final = 300
LIVE: Final = 6_000
"""The newest gangs: two thirds of them run, and the others are pending."""

# A wide table of the drawn values first: each of the other tables follows from it.
_GANGS: Final = f"""
CREATE UNLOGGED TABLE drawn AS
SELECT n, md5('gang' || n)::uuid::text AS uid, 'team-' || lpad((u % {NAMESPACES})::text, 2, '0') AS namespace,
  (ARRAY['train','eval','sweep','finetune','embed'])[1 + n % 5] || '-' || u || '-' || n AS name,
  CASE WHEN n % 3 = 0 THEN 'PyTorchJob' ELSE 'Job' END AS kind, 'user-' || u AS "user", u,
  'queue-' || n % 2 AS queue, 'cq-' || lpad((u % {CLUSTER_QUEUES})::text, 2, '0') AS cluster_queue,
  'cohort-' || u % 4 AS cohort, jsonb_build_object('project', 'p' || u * 3 + n % 3) AS labels,
  (ARRAY[1,1,2,4,8,8,8,16])[1 + n % 8] AS pods, n % 50 = 0 AS evicted,
  queued, queued + waited AS started, queued + waited + ran AS finished,
  n > $1::bigint - {LIVE} AS live, n > $1::bigint - {LIVE} / 3 AS pending
FROM (
  SELECT n, 1 + (hashint8(n) & 2147483647) % {USERS} AS u, {UNTIL} - ($1::bigint - n) * (86400.0 / $2::bigint) AS queued,
    -600 * ln(1 - 0.999 * random()) AS waited, -3600 * ln(1 - 0.999 * random()) AS ran
  FROM generate_series(1, $1::bigint) n
) x
"""
_HELD: Final = "NOT pending"
_ENDED: Final = f"CASE WHEN live THEN {UNTIL} ELSE LEAST(finished, {UNTIL}) END"
_STARTED: Final = f"CASE WHEN pending THEN {UNTIL} ELSE LEAST(started, {UNTIL}) END"
_PLACEMENT: Final = """jsonb_build_object('podsets', jsonb_build_array(jsonb_build_object('podset', 'worker', 'nodes',
  (SELECT jsonb_agg(jsonb_build_array('gpu-node-' || (n * 7 + k) % 10000, 1)) FROM generate_series(1, pods) k),
  'flavors', jsonb_build_object('nvidia.com/gpu', 'h100', 'cpu', 'h100'), 'pods', pods, 'shares', '[]'::jsonb)))"""
_WORKLOADS: Final = f"""
INSERT INTO workloads (uid, version, kind, namespace, name, state, queue, cluster_queue, priority, gpu_parts, pods, attempt, queued_at,
  since, started_at, ready_at, finished_at, failures, evictions, preempted_at, budget, excluded, reason_code, reason_message,
  reason_details, past_seconds, gates, "user", labels)
SELECT uid, 6, kind, namespace, name, CASE WHEN pending THEN 'Pending' WHEN live THEN 'Running' ELSE 'Finished' END, queue,
  cluster_queue, 0, pods * 840, pods, CASE WHEN pending THEN 0 ELSE 1 END, queued, {_ENDED},
  CASE WHEN {_HELD} THEN started END, CASE WHEN {_HELD} THEN started + 5 END, CASE WHEN NOT live THEN finished END, 0,
  evicted::int, '[]', 0, '[]', CASE WHEN live THEN 'Queued' ELSE 'Succeeded' END,
  'all pods of the job have succeeded', '{{}}', finished - started, '[]', "user", labels
FROM drawn
"""
_LINES: Final = (
    # (line, time, event, from, to, code, message, details, placement, condition)
    (0, "queued", "Queued", "NULL", "Pending", "Queued", "waits for the next plan", "'{}'", "NULL", "true"),
    (1, "queued + 1", "WaitingForQuota", "'Pending'", "Pending", "WaitingForQuota",
     "8 of 64 GPUs of the quota are free: 24 more are needed; gangs of team-a hold them",
     """'{"free": 8, "needed": 32, "resource": "nvidia.com/gpu", "levels": ["kubernetes.io/hostname"]}'""", "NULL", "true"),
    (1, "started - 1", "WaitingForQuota", "'Pending'", "Pending", "TopologyPlacementFailed",
     "no rack has 32 free GPUs: the largest free part is 24 GPUs on 3 nodes",
     """'{"free": 24, "needed": 32, "resource": "nvidia.com/gpu", "levels": ["example.com/rack"]}'""", "NULL", "true"),
    (2, "started", "Admitted", "'Pending'", "Starting", "Admitted", "fits on its nodes in one rack",
     """'{"objective": [1, 2], "flavors": {"nvidia.com/gpu": "h100"}}'""", _PLACEMENT, _HELD),
    (3, "started + 5", "PodsReady", "'Starting'", "Running", "PodsReady", "all pods are ready", "'{}'", "NULL", _HELD),
    (4, "started + 9", "Preempted", "'Running'", "Evicting", "Preempted", "for a gang of a higher priority", "'{}'", "NULL",
     "evicted AND NOT live"),
    (5, "finished", "Finished", "'Running'", "Finished", "Succeeded", "all pods of the job have succeeded", "'{}'", "NULL", "NOT live"),
)  # fmt: skip
_HISTORY: Final = (
    """
INSERT INTO history (uid, kind, namespace, name, at, epoch, cycle, attempt, event, from_state, to_state, code, message, details, placement)
SELECT uid, kind, namespace, name, at, 3, n, 1, event, from_state, to_state, code, message, details, placement FROM (
"""
    + " UNION ALL ".join(
        f"SELECT n, uid, kind, namespace, name, {at} AS at, '{event}' AS event, {old}::text AS from_state, '{new}' AS to_state,"
        f" '{code}' AS code, '{message}' AS message, {details}::jsonb AS details, {placed}::jsonb AS placement"
        f" FROM drawn WHERE n > $1::bigint AND n <= $2::bigint AND {condition}"
        for _, at, event, old, new, code, message, details, placed, condition in _LINES
    )
    + ") lines ORDER BY at"
)
_SUBJECTS: Final = """
INSERT INTO usage_subjects (id, uid, kind, namespace, name, queue, cluster_queue, cohort, "user", labels)
SELECT md5('subject' || n)::uuid, uid, kind, namespace, name, queue, cluster_queue, cohort, "user", labels FROM drawn
"""
_HOURS: Final = f"""
INSERT INTO usage_hours (hour, subject, flavor, price, allocated, used, idle, stuck, unknown, waited, waiting, cost, unpriced)
SELECT hour, md5('subject' || n)::uuid, flavor, price, held, held * 0.5, held * 0.25, 0, held * 0.25, waited, waiting, held / 3600 * 2, 0
FROM (
  SELECT n, hour, '' AS flavor, '' AS price, 0 AS held, waiting * pods AS waited, waiting FROM (
    SELECT n, pods, hour, round(((LEAST({_STARTED}, hour + 3600) - GREATEST(queued, hour)) * 1000)::numeric)::float8 / 1000 AS waiting
    FROM drawn, generate_series(floor(queued / 3600)::bigint * 3600, floor(({_STARTED} - 0.001) / 3600)::bigint * 3600, 3600) hour
  ) w WHERE waiting > 0
  UNION ALL
  SELECT n, hour, CASE WHEN n % 4 = 0 THEN 'a100' ELSE 'h100' END, CASE WHEN n % 10 = 0 THEN 'spot' ELSE 'on-demand' END,
    held * pods, 0, 0 FROM (
    SELECT n, pods, hour, round(((LEAST({_ENDED}, hour + 3600) - GREATEST(started, hour)) * 1000)::numeric)::float8 / 1000 AS held
    FROM drawn, generate_series(floor(started / 3600)::bigint * 3600, floor(({_ENDED} - 0.001) / 3600)::bigint * 3600, 3600) hour
    WHERE {_HELD} AND started < {UNTIL}
  ) h WHERE held > 0
) x ORDER BY hour
"""
_LOSSES: Final = f"""
INSERT INTO usage_losses (hour, subject, flavor, reason, gpu_seconds, evictions)
SELECT floor(started / 3600)::bigint * 3600, md5('subject' || n)::uuid, 'h100', 'Preempted', pods * 4, 1
FROM drawn WHERE evicted AND {_HELD} AND started < {UNTIL}
"""
_CONTAINERS: Final = f"""
INSERT INTO usage_containers SELECT uid, {_ENDED}, 3600, 9000, 12000, 1e13, 2e13, 4e9 FROM drawn WHERE {_HELD};
"""
_CURVES: Final = f"""
INSERT INTO usage_curves SELECT uid, started, 60, decode(repeat('0000803f0000003f0000003f', 8), 'hex') FROM drawn WHERE {_HELD}
"""
_FLEET: Final = f"""
INSERT INTO usage_fleet SELECT hour, flavor, 3600, 3600 * 10000, 3600 * 900, 3600 * 100, 3600 * 10, 0
FROM generate_series({UNTIL} - 86400 * 400, {UNTIL} - 3600, 3600) hour, unnest(ARRAY['h100','a100']) flavor
"""
_CLUSTER: Final = f"""
INSERT INTO usage_cluster SELECT hour, 20000 * 3024000::bigint, 3024000, 0, 3024 FROM generate_series({UNTIL} - 86400 * 400, {UNTIL} - 3600, 3600) hour
"""
_AUDIT: Final = f"""
INSERT INTO audit (at, request_id, caller, groups, method, path, operation, status, detail)
SELECT {UNTIL} - (1000000 - n) * 2, 'r' || n, 'user-' || n % {USERS}, '["system:authenticated"]', 'POST',
  '/api/v1/workloads/' || md5(n::text) || '/hold', 'holdWorkload', 202, 'hold' FROM generate_series(1, 1000000) n
"""
_DECISIONS: Final = f"""
INSERT INTO decisions (at, epoch, cycle, revision, history_after, history_upto, counts, reasons, proof, seconds, stats)
SELECT {UNTIL} - (300000 - n) * 2, 3, n, 1, n * 2, n * 2 + 2, '{{"nodes": 10000, "pending": 2000, "running": 4000, "started": 2, "gpus": 16, "evicted": 0, "moved": 0, "waiting": 2000}}',
  '{{"WaitingForQuota": 1500}}', 'optimal', 0.1, '{{}}' FROM generate_series(1, 300000) n
"""
_PROGRESS: Final = f"UPDATE usage_progress SET until = {UNTIL}"
_INDEXES: Final = """
SELECT c.relname AS name, pg_get_indexdef(c.oid) AS definition FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)
"""


async def fill(connection: asyncpg.Connection, gangs: int, a_day: int = GANGS_A_DAY) -> None:
    """Fill an empty, migrated database. With fewer gangs ``a_day``, the same days have fewer rows."""
    await connection.execute(
        "SET statement_timeout = 0; SET maintenance_work_mem = '256MB'; SET work_mem = '64MB'"
    )
    indexes = await connection.fetch(_INDEXES)
    for index in indexes:
        await connection.execute(f'DROP INDEX "{index["name"]}"')
    await connection.execute("SELECT setseed(0.5)")
    # CREATE TABLE AS takes no parameters.
    drawn = _GANGS.replace("$1::bigint", str(gangs)).replace("$2::bigint", str(a_day))
    await connection.execute(drawn)
    for low in range(0, gangs, GANGS_A_DAY):
        await connection.execute(_HISTORY, low, low + GANGS_A_DAY)
    for statement in (
        *(_WORKLOADS, _SUBJECTS, _HOURS, _LOSSES, _CONTAINERS, _CURVES),
        *(_FLEET, _CLUSTER, _AUDIT, _DECISIONS, _PROGRESS, "DROP TABLE drawn"),
    ):
        await connection.execute(statement)
    for index in indexes:
        await connection.execute(index["definition"])
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")
