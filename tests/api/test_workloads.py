"""Workloads over REST: found by name or uid, each with a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from queuectl.api.app import create_app
from queuectl.api.views import use_view
from queuectl.domain.events import Admit, PodsReady, Refuse
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import FlavorShare, Placement
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, commit, talking_to
from tests.api.support import LIVES, PLACED, QUOTA, FixedDiagnoser, FixedHealth, job, live_through

LIST = "/api/v1/workloads"
NAMED = "/api/v1/namespaces/team-a/workloads"


Query = dict[str, str | int | list[str]]


async def names(api: httpx2.AsyncClient, **query: str | int | list[str]) -> list[str]:
    answer = await api.get(LIST, params={"sort": "name", **query})
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.usefixtures("ledger")
class TestList:
    async def test_workloads_are_listed_by_name(self, api: httpx2.AsyncClient) -> None:
        assert await names(api) == sorted(LIVES)

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"namespace": "team-a"}, sorted(LIVES)),
            ({"namespace": "team-b"}, []),
            ({"user": "ann"}, []),
            ({"queue": "default"}, sorted(LIVES)),
            ({"queue": "other"}, []),
            ({"cluster_queue": "team-a"}, sorted(LIVES)),
            ({"kind": "PyTorchJob"}, []),
            ({"state": "Running"}, ["running", "unready"]),
            ({"state": ["Held", "Starting"]}, ["held", "starting"]),
            ({"state": "Finished", "namespace": "team-a"}, ["finished"]),
        ],
    )
    async def test_filters_select(
        self, api: httpx2.AsyncClient, query: Query, expected: list[str]
    ) -> None:
        assert await names(api, **query) == expected

    async def test_labels_select(self, api: httpx2.AsyncClient, store: AnyStore) -> None:
        labels = (("stage", "train"), ("team", "nlp"))
        await commit(store, live_through(replace(job("labeled"), labels=labels)))
        assert await names(api, label_selector="team in (nlp, vision),stage") == ["labeled"]
        (item,) = (await api.get(LIST, params={"label_selector": "team"})).json()["items"]
        assert item["labels"] == dict(labels)
        assert await names(api, label_selector="!team") == sorted(LIVES)
        assert await names(api, label_selector="team=nlp", state="Running") == []
        for wrong in (
            "team in nlp",
            "queuectl.dev/queue-name=a",
            "kueue.x-k8s.io/queue-name",
            "a,,b",
        ):
            answer = await api.get(LIST, params={"label_selector": wrong})
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["field"] == "label_selector"

    async def test_the_list_is_sorted_as_asked(self, api: httpx2.AsyncClient) -> None:
        by_name, by_state = await names(api, sort="-name"), await names(api, sort="state")
        unsorted = (await api.get(LIST)).json()["items"]
        assert [item["name"] for item in unsorted] == await names(api, sort="-urgency")
        assert unsorted[-1]["state"] == "Finished"
        assert by_name == sorted(LIVES, reverse=True)
        assert set(by_state) == set(LIVES)
        assert by_state != sorted(LIVES)

    async def test_a_cursor_of_another_order_is_refused(self, api: httpx2.AsyncClient) -> None:
        first = (await api.get(LIST, params={"sort": "-gpus", "limit": 2})).json()
        asked = {"sort": "gpus", "limit": 2, "cursor": first["nextCursor"]}
        answer = await api.get(LIST, params=asked)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "cursor"

    async def test_pages_join_to_the_whole_list(self, api: httpx2.AsyncClient) -> None:
        found: list[str] = []
        cursor: str | None = None
        while True:
            query = {"limit": "3", "sort": "name"} | ({"cursor": cursor} if cursor else {})
            page = (await api.get(LIST, params=query)).json()
            assert len(page["items"]) <= 3
            found += [item["name"] for item in page["items"]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert found == sorted(LIVES)

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ({"limit": 501}, "limit"),
            ({"limit": 0}, "limit"),
            ({"cursor": "nonsense"}, "cursor"),
            ({"state": "Flying"}, "state.0"),
            ({"namespace": "Team_A"}, "namespace"),
        ],
    )
    async def test_a_wrong_parameter_is_named(
        self, api: httpx2.AsyncClient, query: Query, field: str
    ) -> None:
        answer = await api.get(LIST, params=query)
        assert answer.status_code == 422
        assert answer.json()["type"].endswith("/invalid-parameter")
        assert [error["field"] for error in answer.json()["errors"]] == [field]


WAITS = {"QuotaReserved": False, "Admitted": False, "PodsReady": False}
CONDITIONS = {
    "pending": {"QuotaReserved": False, "Admitted": False, "PodsReady": False},
    "reserved": {"QuotaReserved": True, "Admitted": False, "PodsReady": False},
    "starting": {"QuotaReserved": True, "Admitted": True, "PodsReady": False},
    "running": {"QuotaReserved": True, "Admitted": True, "PodsReady": True},
    "evicting": {
        "QuotaReserved": True,
        "Admitted": True,
        "PodsReady": False,
        "Evicted": True,
        "Preempted": True,
    },
    "requeued": {**WAITS, "Evicted": True, "Preempted": True, "Requeued": True},
    "backoff": {**WAITS, "Evicted": True, "Requeued": False},
    "held": WAITS,
    "leaving": {"QuotaReserved": True, "Admitted": True, "PodsReady": False, "Evicted": True},
    "deactivated": WAITS,
    "unready": {"QuotaReserved": True, "Admitted": True, "PodsReady": False},
    "finished": {"Finished": True},
}


@pytest.mark.usefixtures("ledger")
class TestOne:
    @pytest.mark.parametrize("name", LIVES)
    async def test_a_workload_is_the_same_by_name_and_by_uid(
        self, api: httpx2.AsyncClient, name: str
    ) -> None:
        by_name = await api.get(f"{NAMED}/{name}")
        by_uid = await api.get(f"{LIST}/uid-job-{name}")
        assert by_name.status_code == by_uid.status_code == 200
        assert by_name.json() == by_uid.json()

    async def test_an_index_of_an_array_has_its_own_name(
        self, api: httpx2.AsyncClient, ledger: AnyStore
    ) -> None:
        await commit(ledger, live_through(job("sweep_3")))
        assert (await api.get(f"{NAMED}/sweep_3")).json()["name"] == "sweep_3"
        assert (await api.get(f"{NAMED}/sweep_3/history")).status_code == 200
        assert (await api.get(f"{NAMED}/-sweep")).status_code == 422

    async def test_a_group_of_pods_and_its_kind_have_the_names_that_labels_and_declarations_allow(
        self, api: httpx2.AsyncClient, ledger: AnyStore
    ) -> None:
        await commit(ledger, live_through(job("My_Pair.v2", kind="K8sJob")))
        path = f"{NAMED}/My_Pair.v2"
        assert (await api.get(path, params={"kind": "K8sJob"})).json()["name"] == "My_Pair.v2"
        assert (await api.post(f"{path}/hold", json={})).status_code == 202
        commands = await api.get("/api/v1/commands", params={"workload": "team-a/My_Pair.v2"})
        assert [one["action"] for one in commands.json()["items"]] == ["hold"]

    @pytest.mark.parametrize("name", LIVES)
    async def test_kueues_conditions_follow_from_the_state(
        self, api: httpx2.AsyncClient, name: str
    ) -> None:
        body = (await api.get(f"{NAMED}/{name}")).json()
        found = {c["type"]: c["status"] == "True" for c in body["conditions"]}
        assert found == CONDITIONS[name]

    @pytest.mark.parametrize(
        ("name", "condition", "reason"),
        [
            ("pending", "QuotaReserved", "WaitingForQuota"),
            ("running", "PodsReady", "Started"),
            ("starting", "PodsReady", "WaitForStart"),
            ("unready", "PodsReady", "WaitForRecovery"),
            ("evicting", "Evicted", "Preempted"),
            ("backoff", "Evicted", "PodsReadyTimeout"),
            ("leaving", "Evicted", "Deactivated"),
            ("deactivated", "Admitted", "Deactivated"),
            ("finished", "Finished", "Succeeded"),
        ],
    )
    async def test_reasons_of_conditions_are_those_of_kueue(
        self, api: httpx2.AsyncClient, name: str, condition: str, reason: str
    ) -> None:
        body = (await api.get(f"{NAMED}/{name}")).json()
        assert {c["type"]: c["reason"] for c in body["conditions"]}[condition] == reason

    async def test_a_pending_workload_has_its_positions_in_both_queues(
        self, api: httpx2.AsyncClient
    ) -> None:
        listed = (await api.get(LIST)).json()["items"]
        lines = {
            w["name"]: (w["positionInClusterQueue"], w["positionInLocalQueue"]) for w in listed
        }
        assert lines.pop("pending") == (1, 1)
        assert lines.pop("requeued") == (2, 2)
        assert lines.pop("reserved") == (3, 3)
        assert set(lines.values()) == {(None, None)}
        one = (await api.get(f"{NAMED}/requeued")).json()
        assert one["positionInClusterQueue"] == 2

    async def test_times_have_a_time_zone(self, api: httpx2.AsyncClient) -> None:
        body = (await api.get(f"{NAMED}/running")).json()
        assert body["queuedAt"] == "1970-01-01T00:00:01Z"
        assert body["startedAt"] == "1970-01-01T00:00:11Z"
        assert body["finishedAt"] is None

    @pytest.mark.parametrize("suffix", ["", "/explain", "/history"])
    async def test_an_unknown_workload_is_not_found(
        self, api: httpx2.AsyncClient, suffix: str
    ) -> None:
        for path in (f"{NAMED}/nobody{suffix}", f"{LIST}/uid-nobody{suffix}"):
            answer = await api.get(path)
            assert (answer.status_code, answer.json()["title"]) == (
                404,
                "The object does not exist",
            )

    async def test_history_has_every_step_in_order(self, api: httpx2.AsyncClient) -> None:
        body = (await api.get(f"{NAMED}/requeued/history")).json()
        steps = [(line["fromState"], line["toState"]) for line in body["items"]]
        assert steps == [
            (None, "Pending"),
            ("Pending", "Starting"),
            ("Starting", "Running"),
            ("Running", "Evicting"),
            ("Evicting", "Pending"),
        ]
        placed = body["items"][1]["placement"]["podSets"][0]
        assert placed["nodes"] == {"node-1": 2, "node-2": 2}
        assert body["nextAfter"] is None

    async def test_history_can_be_read_in_pieces(self, api: httpx2.AsyncClient) -> None:
        path = f"{NAMED}/requeued/history"
        whole = (await api.get(path)).json()["items"]
        first = (await api.get(path, params={"limit": 2})).json()
        rest = (await api.get(path, params={"after": first["nextAfter"]})).json()
        assert first["items"] + rest["items"] == whole


@pytest.mark.usefixtures("ledger")
class TestExplain:
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            (
                "pending",
                "is pending, at position 1 in queue order of ClusterQueue team-a: 32 of 64 nvidia.com/gpu are in use.",
            ),
            (
                "reserved",
                "has capacity reserved, at position 3 in queue order of ClusterQueue team-a: 1 gang leaves for it.",
            ),
            ("starting", "is starting 4 pods on 2 nodes: admitted as attempt 1."),
            ("running", "is running 4 pods on 2 nodes: all 4 pods are ready."),
            ("evicting", "is being evicted and will be queued again: for team-a/urgent."),
            (
                "backoff",
                "waits until 1970-01-01 00:01:31 UTC before it is queued again: start 1 failed (PodsReadyTimeout); the next start is tried in 60 s.",
            ),
            ("held", "is held: held by alice."),
            ("leaving", "is being evicted and will be deactivated: deactivated by alice."),
            ("deactivated", "is deactivated: deactivated by alice."),
            ("finished", "has finished: Succeeded."),
        ],
    )
    async def test_a_sentence_states_what_happens_and_why(
        self, api: httpx2.AsyncClient, name: str, says: str
    ) -> None:
        assert (await api.get(f"{NAMED}/{name}/explain")).json()[
            "sentence"
        ] == f"team-a/{name} {says}"

    async def test_a_refused_gang_has_its_reason(self, api: httpx2.AsyncClient) -> None:
        body = (await api.get(f"{NAMED}/pending/explain")).json()
        assert body["code"] == "WaitingForQuota"
        assert (body["conflict"], body["suggestedFixes"]) == (
            [],
            [],
        )  # no diagnoser here can analyze it
        assert body["details"] == {"also": [], "proof": "optimal"}
        assert body["placement"] is None

    async def test_a_pending_gang_is_diagnosed_where_a_planner_is_available(
        self, store: AnyStore, health: FixedHealth, metrics: MetricsRecorder
    ) -> None:
        diagnoser = FixedDiagnoser()
        async with talking_to(create_app(store, health, metrics.registry, diagnoser)) as api:
            body = (await api.get(f"{NAMED}/pending/explain")).json()
            running = (await api.get(f"{NAMED}/running/explain")).json()
        assert [o["code"] for o in body["conflict"]] == ["Quota"]
        assert body["suggestedFixes"] == [
            {
                "code": "AddQuota",
                "message": "add quota for 8 more nvidia.com/gpu",
                "least": True,
                "details": {"amount": 8},
            }
        ]
        assert running["conflict"] == []
        assert diagnoser.asked == [body["uid"]]  # running gangs are not diagnosed

    async def test_a_reserved_gang_has_its_nodes_and_its_victims(
        self, api: httpx2.AsyncClient
    ) -> None:
        body = (await api.get(f"{NAMED}/reserved/explain")).json()
        assert body["placement"]["planned"] is True
        assert body["reservation"]["victims"] == ["uid-victim"]
        assert body["reservation"]["victimNames"] == [
            "uid-victim"
        ]  # its entry is not in the ledger

    async def test_a_reserved_gang_has_the_names_of_its_victims(
        self, api: httpx2.AsyncClient, store: AnyStore
    ) -> None:
        victim = replace(job("old"), uid="uid-victim")
        await commit(store, live_through(victim, *LIVES["evicting"]))
        body = (await api.get(f"{NAMED}/reserved/explain")).json()
        assert body["reservation"]["victims"] == ["uid-victim"]
        assert body["reservation"]["victimNames"] == ["team-a/old"]

    async def test_a_running_gang_has_its_placement(self, api: httpx2.AsyncClient) -> None:
        body = (await api.get(f"{NAMED}/running/explain")).json()
        assert body["placement"] == {
            "planned": False,
            "podSets": [
                {
                    "name": "worker",
                    "count": 4,
                    "flavors": {"nvidia.com/gpu": "h100"},
                    "nodes": {"node-1": 2, "node-2": 2},
                    "shares": None,
                }
            ],
        }
        assert body["position"] is None

    async def test_each_share_of_a_split_gang_has_its_flavor(
        self, api: httpx2.AsyncClient, store: AnyStore
    ) -> None:
        (placed,) = PLACED.podsets
        shares = (FlavorShare(3, placed.flavors), FlavorShare(1, {"nvidia.com/gpu": "spot"}))
        split = Placement((replace(placed, shares=shares),))
        await commit(store, live_through(job("split"), Admit(split)))
        body = (await api.get(f"{NAMED}/split/explain")).json()
        assert body["placement"]["podSets"][0]["shares"] == [
            {"count": 3, "flavors": {"nvidia.com/gpu": "h100"}},
            {"count": 1, "flavors": {"nvidia.com/gpu": "spot"}},
        ]


IDLE = GangUse("", 1, UseState.IDLE, 100.0, 160.0, 0.004, 1.0, "its busiest GPU stayed below 1%")
BLIND = GangUse("", 1, UseState.UNKNOWN, 100.0, 160.0, None, 0.5, "w-3: no GPU of it is seen")


@pytest.mark.usefixtures("ledger")
class TestUse:
    @pytest.fixture
    async def looked(
        self, store: AnyStore, health: FixedHealth, metrics: MetricsRecorder
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """Talks to an API whose process has sampled all GPUs but those of one gang."""
        diagnoser = FixedDiagnoser(known=None)
        diagnoser.uses = {f"uid-job-{name}": IDLE for name in LIVES}
        diagnoser.uses["uid-job-unready"] = BLIND
        async with talking_to(create_app(store, health, metrics.registry, diagnoser)) as api:
            yield api

    async def test_a_gang_with_gpus_has_its_last_sample(self, looked: httpx2.AsyncClient) -> None:
        one = (await looked.get(f"{NAMED}/running")).json()["use"]
        assert one == {
            "state": "Idle",
            "since": "1970-01-01T00:01:40Z",
            "lookedAt": "1970-01-01T00:02:40Z",
            "utilization": 0.004,
            "covered": 1.0,
            "message": "its busiest GPU stayed below 1%",
        }
        assert (await looked.get(f"{NAMED}/running/explain")).json()["use"] == one

    async def test_unknown_use_is_shown_as_unknown_with_the_missing_data(
        self, looked: httpx2.AsyncClient
    ) -> None:
        use = (await looked.get(f"{NAMED}/unready")).json()["use"]
        assert (use["state"], use["utilization"], use["covered"]) == ("Unknown", None, 0.5)
        assert use["message"] == "w-3: no GPU of it is seen"

    async def test_only_gangs_that_hold_gpus_have_use(self, looked: httpx2.AsyncClient) -> None:
        listed = (await looked.get(LIST)).json()["items"]
        assert {w["name"] for w in listed if w["use"]} == {"starting", "running", "unready"}

    async def test_a_sample_of_an_earlier_attempt_is_not_shown(
        self, looked: httpx2.AsyncClient, store: AnyStore
    ) -> None:
        again = (*LIVES["requeued"], Admit(PLACED), PodsReady())
        await commit(store, live_through(replace(job("again"), uid="uid-job-requeued-2"), *again))
        entry = await store.get_workload("uid-job-requeued-2")
        assert entry is not None
        assert entry.attempt == 2
        assert use_view(entry, IDLE) is None
        assert use_view(entry, replace(IDLE, attempt=2)) is not None

    async def test_without_a_utilization_signal_use_is_null(self, api: httpx2.AsyncClient) -> None:
        assert (await api.get(f"{NAMED}/running")).json()["use"] is None


async def test_the_queue_order_is_by_priority_and_then_by_time(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await commit(store, live_through(job("late", at=3.0), QUOTA))
    await commit(store, live_through(job("early", at=2.0), QUOTA))
    await commit(store, live_through(job("urgent", at=4.0), QUOTA, priority=10))
    found = {
        name: (await api.get(f"{NAMED}/{name}/explain")).json()["position"]
        for name in ("urgent", "early", "late")
    }
    assert found == {"urgent": 1, "early": 2, "late": 3}


@pytest.mark.parametrize(
    "code",
    [
        Code.MISCONFIGURED,
        Code.UNSUPPORTED,
        Code.NO_MATCHING_FLAVOR,
        Code.EXCEEDS_MAX_QUOTA,
        Code.SHAPE_NEVER_FITS,
    ],
)
async def test_a_gang_that_cannot_start_has_no_position_in_the_queue(
    api: httpx2.AsyncClient, store: AnyStore, code: Code
) -> None:
    never = Refuse(Reason(code, "not like this"))
    await commit(store, live_through(job("never", at=1.0), never, priority=99))
    await commit(store, live_through(job("waits", at=2.0), QUOTA))
    found = [
        (await api.get(f"{NAMED}/{name}/explain")).json()["position"] for name in ("never", "waits")
    ]
    assert found == [None, 1]


class TestSameName:
    """A Job and a PyTorchJob can have the same name."""

    async def test_the_kind_is_required_to_distinguish_two_that_live(
        self, api: httpx2.AsyncClient, store: AnyStore
    ) -> None:
        for kind in ("Job", "PyTorchJob"):
            await commit(store, live_through(job("train", kind=kind), QUOTA))
        answer = await api.get(f"{NAMED}/train")
        assert answer.status_code == 409
        assert answer.json()["kinds"] == ["Job", "PyTorchJob"]
        chosen = await api.get(f"{NAMED}/train", params={"kind": "PyTorchJob"})
        assert chosen.json()["uid"] == "uid-pytorchjob-train"

    async def test_a_live_workload_is_preferred_to_a_finished_one(
        self, api: httpx2.AsyncClient, store: AnyStore
    ) -> None:
        await commit(store, live_through(job("train"), *LIVES["finished"]))
        successor = replace(job("train"), uid="uid-again")
        await commit(store, live_through(successor, Admit(PLACED)))
        await commit(store, live_through(job("train", kind="PyTorchJob"), *LIVES["finished"]))
        assert (await api.get(f"{NAMED}/train")).json()["uid"] == "uid-again"
