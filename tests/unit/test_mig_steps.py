"""The steps of a change of a node's MIG configuration, as a table, and its annotation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Node
from queuectl.domain.ledger import Entry, State
from queuectl.domain.mig import CONFIG, STATE, MigGeometry, MigPhase, MigReconfiguration, MigResult
from queuectl.domain.quantity import Resources
from queuectl.domain.records import NodeRecord
from queuectl.mig.changes import GpuUse, MigGroup, MigStep, active_changes, changeable, step, waited
from queuectl.mig.fixes import sentence
from queuectl.objects.kubernetes.mig_reconfiguration import (
    mig_annotation,
    mig_patch,
    read_mig_reconfiguration,
)
from queuectl.state.ledger import Ledger
from queuectl.state.nodes import NodeTable

TIMEOUT = 600.0
BEGUN = 1000.0
OLD = MigGeometry("all-disabled", "H100", (("nvidia.com/gpu", 8),))
NEW = MigGeometry("half", "H100", (("nvidia.com/gpu", 4), ("nvidia.com/mig-1g.10gb", 28)))
EMPTYING, APPLYING, BACK = MigPhase.EMPTYING, MigPhase.APPLYING, MigPhase.ROLLING_BACK


def change(
    phase: MigPhase, since: float = BEGUN, gang: str = "u1", nodes: int = 1
) -> MigReconfiguration:
    return MigReconfiguration(OLD, NEW, gang, nodes, BEGUN, phase, since)


def node(
    mig: MigReconfiguration | None,
    config: str = OLD.config,
    state: str | None = "success",
    gpus: MigGeometry = OLD,
    *,
    cordoned: bool = True,
    name: str = "n1",
) -> NodeRecord:
    labels = {CONFIG: config, "nvidia.com/gpu.product": gpus.product}
    if state is not None:
        labels[STATE] = state
    found = Node(name, labels, Resources(dict(gpus.gpus)), unschedulable=cordoned, mig=mig)
    return NodeRecord(found, 7, cordoned=cordoned, uid="node-1")


def ends(phase: MigPhase, result: MigResult, before: MigPhase, now: float) -> MigStep:
    return MigStep(change(before).entered(phase, now), uncordon=True, outcome=result)


NOW = BEGUN + 60
LATE = BEGUN + TIMEOUT + 1
ALL = MigGroup()
STEPS = {
    # what the node is like, its group, the time, and the next step
    "no change": (node(None), ALL, NOW, None),
    "an ended change": (node(change(MigPhase.FAILED)), ALL, NOW, None),
    "pods hold GPUs": (node(change(EMPTYING)), MigGroup(use=GpuUse.USED), NOW, None),
    "no pod holds GPUs": (
        node(change(EMPTYING)),
        ALL,
        NOW,
        MigStep(change(APPLYING, NOW), config=NEW.config),
    ),
    "pods do not leave": (
        node(change(EMPTYING)),
        MigGroup(use=GpuUse.USED),
        LATE,
        ends(MigPhase.NOT_EMPTIED, MigResult.NOT_EMPTIED, EMPTYING, LATE),
    ),
    "gangs have no other place": (
        node(change(EMPTYING)),
        MigGroup(use=GpuUse.STAYS),
        NOW,
        ends(MigPhase.NOT_EMPTIED, MigResult.NOT_EMPTIED, EMPTYING, NOW),
    ),
    "the gang is deleted": (
        node(change(EMPTYING)),
        MigGroup(needed=False),
        NOW,
        ends(MigPhase.WITHDRAWN, MigResult.WITHDRAWN, EMPTYING, NOW),
    ),
    "other nodes begin later": (node(change(EMPTYING)), MigGroup(complete=False), BEGUN + 5, None),
    "other nodes do not begin": (
        node(change(EMPTYING)),
        MigGroup(complete=False),
        NOW,
        ends(MigPhase.WITHDRAWN, MigResult.WITHDRAWN, EMPTYING, NOW),
    ),
    "no state yet": (node(change(APPLYING), NEW.config, None), ALL, NOW, None),
    "the manager works": (node(change(APPLYING), NEW.config, "pending"), ALL, NOW, None),
    "the resources are old": (node(change(APPLYING), NEW.config), ALL, NOW, None),
    "the new resources are there": (
        node(change(APPLYING), NEW.config, gpus=NEW),
        ALL,
        NOW,
        ends(MigPhase.SUCCEEDED, MigResult.SUCCEEDED, APPLYING, NOW),
    ),
    "another node is not ready": (
        node(change(APPLYING), NEW.config, gpus=NEW),
        MigGroup(applied=False),
        LATE,
        None,
    ),
    "the gang is deleted, and the label is set": (
        node(change(APPLYING), NEW.config, "pending"),
        MigGroup(needed=False),
        NOW,
        None,
    ),
    "the manager fails": (
        node(change(APPLYING), NEW.config, "failed"),
        ALL,
        NOW,
        MigStep(change(BACK, NOW), config=OLD.config),
    ),
    "the manager does not answer": (
        node(change(APPLYING), NEW.config, "pending"),
        ALL,
        LATE,
        MigStep(change(BACK, LATE), config=OLD.config),
    ),
    "it rolls back": (node(change(BACK), OLD.config, "pending"), ALL, LATE, None),
    "it fails to roll back": (node(change(BACK), OLD.config, "failed"), ALL, LATE, None),
    "it has applied the new one late": (node(change(BACK), OLD.config, gpus=NEW), ALL, NOW, None),
    "it has rolled back": (
        node(change(BACK)),
        ALL,
        NOW,
        ends(MigPhase.FAILED, MigResult.ROLLED_BACK, BACK, NOW),
    ),
    "it has rolled back, and a GPU has failed": (
        node(change(BACK), gpus=replace(OLD, gpus=(("nvidia.com/gpu", 7),))),
        ALL,
        LATE,
        ends(MigPhase.FAILED, MigResult.ROLLED_BACK, BACK, LATE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_next_step_follows_from_the_node(name: str) -> None:
    record, group, now, expected = STEPS[name]
    assert step(record, group, now, TIMEOUT) == expected


@pytest.mark.parametrize("phase", [EMPTYING, APPLYING, BACK])
def test_a_node_that_others_change_is_left_to_them(phase: MigPhase) -> None:
    """Without a cordon at once; with another label once the MIG manager has applied it."""
    own, mixed = (
        change(phase).geometry.config,
        MigGeometry("other", "H100", (("nvidia.com/gpu", 1),)),
    )
    taken = ends(MigPhase.TAKEN_OVER, MigResult.TAKEN_OVER, phase, NOW)
    assert step(node(change(phase), own, cordoned=False), ALL, NOW, TIMEOUT) == taken
    assert step(node(change(phase), "other", "pending"), ALL, LATE, TIMEOUT) is None
    assert step(node(change(phase), "other", gpus=mixed), ALL, NOW, TIMEOUT) == taken


@pytest.mark.parametrize("phase", [EMPTYING, APPLYING, BACK])
def test_a_node_with_the_label_of_a_user_takes_no_pods_while_its_state_can_be_that_of_the_last_label(
    phase: MigPhase,
) -> None:
    """The MIG manager replaces the state later than the user the label, and then cuts GPUs although pods use them."""
    before = change(phase).geometry
    relabeled = node(change(phase), "other", "success", before)
    assert step(relabeled, ALL, NOW, TIMEOUT) is None
    taken = ends(MigPhase.TAKEN_OVER, MigResult.TAKEN_OVER, phase, LATE)
    assert step(relabeled, ALL, LATE, TIMEOUT) == taken, "the label can name the same GPUs"


@given(
    phase=st.sampled_from(MigPhase),
    config=st.sampled_from([OLD.config, NEW.config, "other"]),
    state=st.sampled_from([None, "pending", "rebooting", "success", "failed"]),
    gpus=st.sampled_from([OLD, NEW]),
    cordoned=st.booleans(),
    group=st.builds(MigGroup),
    late=st.booleans(),
)
def test_a_step_is_taken_once(
    phase: MigPhase,
    config: str,
    state: str | None,
    gpus: MigGeometry,
    cordoned: bool,
    group: MigGroup,
    late: bool,
) -> None:
    """After the write, the same node asks for the same write never again: a leader that repeats it finds nothing to do."""
    record, now = node(change(phase), config, state, gpus, cordoned=cordoned), LATE if late else NOW
    first = step(record, group, now, TIMEOUT)
    if first is None:
        return
    after = record.node
    labels = dict(after.labels)
    if first.config is not None:
        labels[CONFIG] = first.config
        labels.pop(STATE, None)
    written = replace(
        record,
        node=replace(after, labels=labels, mig=first.after),
        cordoned=record.cordoned and not first.uncordon,
    )
    assert step(written, group, now, TIMEOUT) is None
    assert first.uncordon is (first.outcome is not None)


def test_a_patch_holds_the_version_of_the_node() -> None:
    mig = change(EMPTYING)
    record = node(mig)
    patch = mig_patch(record, change(APPLYING), config=NEW.config)
    assert patch["metadata"]["uid"] == "node-1"
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["metadata"]["labels"] == {CONFIG: NEW.config, STATE: None}
    assert "spec" not in patch
    assert mig_patch(record, mig, cordon=True)["spec"] == {"unschedulable": True}
    assert mig_patch(record, mig, cordon=False)["spec"] == {"unschedulable": None}


@pytest.mark.parametrize("phase", MigPhase)
def test_the_annotation_can_be_read_again(phase: MigPhase) -> None:
    assert read_mig_reconfiguration(mig_annotation(change(phase, NOW))) == change(phase, NOW)


@pytest.mark.parametrize("text", ["", "{}", "drained by hand", '{"phase": "Emptying"}', "[]"])
def test_an_annotation_of_others_is_not_a_change(text: str) -> None:
    assert read_mig_reconfiguration(text) is None


def test_the_nodes_of_one_change_belong_together() -> None:
    nodes = [
        node(change(EMPTYING, nodes=3), name="n1"),
        node(change(MigPhase.SUCCEEDED, nodes=3), name="n2"),
        node(change(BACK, gang="u2"), name="n3"),
        node(change(MigPhase.FAILED, gang="u3"), name="n4"),
        node(None, name="n5"),
        node(change(MigPhase.WITHDRAWN, nodes=3), name="n6"),
    ]
    first, second = active_changes(nodes)
    assert first.key != second.key
    assert ([r.node.name for r in first.active], first.complete, first.failed) == (
        ["n1"],
        False,
        False,
    )
    assert ([r.node.name for r in second.active], second.complete, second.failed) == (
        ["n3"],
        True,
        True,
    )


@pytest.mark.parametrize("phase", [EMPTYING, APPLYING, BACK])
@pytest.mark.parametrize("state", [None, "failed"])
def test_a_node_with_the_label_of_a_user_stops_neither_its_change_nor_other_changes(
    phase: MigPhase, state: str | None
) -> None:
    """The MIG manager may never apply that label, and may no longer run there."""
    taken = node(change(phase, nodes=2), "other", state, name="n1")
    own = node(change(APPLYING, nodes=2), NEW.config, gpus=NEW, name="n2")
    assert step(taken, ALL, LATE, TIMEOUT) is None, "it stays as the user has left it"
    (both,) = active_changes([taken, own])
    assert both.in_phase(EMPTYING, APPLYING) == [own]
    assert not both.abandoned(LATE, TIMEOUT)
    (rest,) = active_changes([taken])
    assert rest.abandoned(NOW, TIMEOUT)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "n3"]),
            st.sampled_from(["change", "none", "drop", "fail", "again"]),
        )
    )
)
def test_the_table_of_nodes_knows_those_with_a_change(steps: list[tuple[str, str]]) -> None:
    table = NodeTable()
    for version, (name, what) in enumerate(steps, start=1):
        if what in {"change", "none"}:
            mig = change(EMPTYING) if what == "change" else None
            table.put(replace(node(mig, name=name), version=version))
        elif what == "drop":
            table.drop(name)
        elif what == "fail":
            table.mark_unhealthy({name: "XID 79"})
        elif name in table:
            table.expect_again(name)
        expected = [record for record in table.values() if record.node.mig is not None]
        by_name = sorted(table.reconfigured, key=lambda record: record.node.name)
        assert by_name == sorted(expected, key=lambda record: record.node.name)


def test_a_node_is_changed_again_after_the_back_off_and_only_if_its_mig_manager_works() -> None:
    nodes = [
        node(None, name="new", cordoned=False),
        node(None, state="failed", name="failed"),
        node(None, state=None, name="no-state"),
        node(change(MigPhase.FAILED, NOW - 50), name="recent"),
        node(change(MigPhase.SUCCEEDED, NOW - 101), name="long-ago"),
        node(change(EMPTYING, NOW - 101), name="active"),
        node(change(MigPhase.WITHDRAWN, NOW), name="withdrawn"),
    ]
    assert list(changeable(nodes, NOW, 100.0)) == ["new", "long-ago", "withdrawn"]


@pytest.mark.parametrize(
    ("failures", "backoffs"), [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 32), (100, 32)]
)
def test_the_back_off_of_a_node_doubles_with_each_further_failure_up_to_32_times(
    failures: int, backoffs: int
) -> None:
    failed = replace(change(MigPhase.FAILED, NOW), failures=failures)
    assert failed.next_at(100.0) == NOW + backoffs * 100.0
    nodes = [node(failed, cordoned=False)]
    assert not list(changeable(nodes, NOW + backoffs * 100.0 - 1, 100.0))
    assert list(changeable(nodes, NOW + backoffs * 100.0, 100.0)) == ["n1"]


def test_a_node_counts_its_failures_until_a_change_succeeds() -> None:
    changes = change(BACK).entered(MigPhase.FAILED, NOW)
    assert changes.failures == 1
    assert "in succession" not in sentence(changes, "n1")
    again = changes.entered(BACK, NOW).entered(MigPhase.FAILED, NOW)
    assert again.failures == 2
    assert sentence(again, "n1").endswith("; 2 changes in succession failed")
    assert read_mig_reconfiguration(mig_annotation(again)) == again
    assert again.entered(APPLYING, NOW).entered(MigPhase.SUCCEEDED, NOW).failures == 0


def test_a_change_that_is_withdrawn_keeps_the_failures_of_its_node_and_delays_no_other_change() -> (
    None
):
    failed_before = node(replace(change(EMPTYING), failures=3))
    withdrawn = step(failed_before, MigGroup(needed=False), NOW, TIMEOUT)
    assert withdrawn is not None
    assert withdrawn.after is not None
    assert (withdrawn.after.phase, withdrawn.after.failures) == (MigPhase.WITHDRAWN, 3)
    again = node(withdrawn.after, cordoned=False)
    assert list(changeable([again], NOW, 100.0)) == ["n1"]
    gang = Entry("u1", "Job", "a", "u1", State.PENDING, since=NOW - 300)
    assert waited(Ledger([gang]), [again], NOW, 60.0, 100.0) == {"u1"}


def test_nodes_are_changed_for_gangs_that_have_waited_and_for_which_none_was_changed() -> None:
    def pending(uid: str, since: float, state: State = State.PENDING) -> Entry:
        return Entry(uid, "Job", "a", uid, state, since=since)

    ledger = Ledger(
        [
            pending("long", NOW - 300),
            pending("short", NOW - 10),
            pending("held", NOW - 300, State.HELD),
            pending("failed", NOW - 300),
            pending("failed-long-ago", NOW - 300),
            pending("failed-a-back-off-ago", NOW - 300),
        ]
    )
    nodes = [
        node(change(MigPhase.FAILED, NOW - 50, "failed"), name="n1"),
        node(change(MigPhase.FAILED, NOW - 500, "failed-long-ago"), name="n2"),
        node(change(MigPhase.FAILED, NOW - 100, "failed-a-back-off-ago"), name="n3"),
    ]
    again = {"failed-long-ago", "failed-a-back-off-ago"}
    assert waited(ledger, nodes, NOW, 60.0, 100.0) == {"long", *again}
