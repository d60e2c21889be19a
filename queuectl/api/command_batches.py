"""One action on several workloads: a command for each, with the same checks as for a single one, and their cost together.

A refused workload does not keep the others from their commands. A batch that is sent again with the same ``Idempotency-Key`` gives no
second command to a workload.
"""

# No postponed annotations here: see routes/config.py.

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import uuid4

from fastapi import Request
from pydantic import Field

from queuectl.api.access import ANONYMOUS, Guard, caller_of
from queuectl.api.auth.audit import record_change
from queuectl.api.body import missing, read_small
from queuectl.api.command_views import Attempt, CommandBody, CommandView, command_view, own
from queuectl.api.params import UID
from queuectl.api.ports import Diagnoser
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.commands import (
    EVICTING,
    Action,
    Command,
    objection,
    other_attempt,
    reserved_to_admins,
)
from queuectl.domain.errors import Conflict, TooManyCommands
from queuectl.domain.gpus import rounded
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Cost
from queuectl.domain.words import counted, some

BATCH_ACTIONS: Final = (
    Action.HOLD,
    Action.RELEASE,
    Action.REQUEUE,
    Action.PREEMPT,
    Action.DEACTIVATE,
    Action.ACTIVATE,
)
"""Actions whose body has no required field."""
MOST_WORKLOADS: Final = 100
_LISTED: Final = 20  # workloads that the audit log names


class BatchTarget(View):
    uid: str = Field(pattern=UID, max_length=128)
    attempt: Attempt = None


class BatchBody(CommandBody):
    workloads: list[BatchTarget] = Field(min_length=1, max_length=MOST_WORKLOADS)


class BatchItemView(View):
    """The result for one workload."""

    uid: str
    workload: str | None = Field(
        description="namespace/name; null = it does not exist, or you are not allowed to see it."
    )
    attempt: int | None = Field(description="Number of starts so far; null as for `workload`.")
    refusal: str | None = Field(
        description="The reason why it gets no command; null = it gets one."
    )
    evicts: bool = Field(description="Whether it runs and would be evicted.")
    pods: int = Field(description="Number of pods that would be stopped.")
    gpus: float = Field(description="GPUs that would become free.")
    lost_gpu_seconds: int | None = Field(
        description="Work that it would lose, in GPU-seconds; null = not known at the moment."
    )
    command: CommandView | None = Field(description="Its command; null in a dry run.")


class BatchView(View):
    """The results in the order of the request. The sums are those of the workloads that are not refused."""

    action: Action
    accepted: int = Field(description="Number of workloads that are not refused.")
    evicted: int = Field(description="Number of gangs that would be evicted.")
    pods: int
    gpus: float
    lost_gpu_seconds: int | None = Field(description="null = not known for each of them.")
    items: list[BatchItemView]


class CommandBatches:
    """Accepts actions on several workloads."""

    def __init__(self, guard: Guard, store: ApiStore, diagnoser: Diagnoser | None) -> None:
        """``diagnoser``: None where no controller runs."""
        self._guard = guard
        self._store = store
        self._diagnoser = diagnoser

    async def handle(
        self, request: Request, action: Action, key: str | None, *, dry_run: bool
    ) -> BatchView:
        """The results, after the commands are stored unless it is a dry run.

        Raises:
            Problem: forbidden for a caller without the right in any namespace, before the body is read.
        """
        right = f"workloads/{action}"
        if not await self._guard.somewhere(request, "create", right, self._store.namespaces):
            await self._guard.require(request, Right("create", right))
        body = await read_small(request, BatchBody)
        if body is None:
            raise missing()
        targets = {target.uid: target for target in body.workloads}
        entries = {entry.uid: entry for entry in await self._store.get_workloads(targets)}
        visible = await self._permitted(request, "get", "workloads", entries.values())
        permitted = await self._permitted(request, "create", right, visible.values())
        commands = await self._commands(request, action, key, body, permitted)
        refusals = await self._refusals(action, targets, visible, commands)
        accepted = [entries[uid] for uid in targets if uid not in refusals]
        costs = await self._costs(action, accepted)
        kept = {} if dry_run else await self._keep(commands, accepted, refusals)
        items = [
            _item(uid, action, visible.get(uid), refusals.get(uid), costs, kept.get(uid))
            for uid in targets
        ]
        view = _view(action, items)
        if not dry_run:
            record_change(request, _summary(view))
        return view

    async def _permitted(
        self, request: Request, verb: str, resource: str, entries: Iterable[Entry]
    ) -> dict[str, Entry]:
        """The workloads to which the caller has a right, by uid. A right to all of a namespace settles those in it."""
        answers: dict[Right, bool] = {}

        async def may(right: Right) -> bool:
            if right not in answers:
                answers[right] = await self._guard.may(request, right)
            return answers[right]

        permitted = {}
        for entry in entries:
            for scope in ((), (entry.namespace,), (entry.namespace, entry.name)):
                if await may(Right(verb, resource, *scope)):
                    permitted[entry.uid] = entry
                    break
        return permitted

    async def _commands(
        self,
        request: Request,
        action: Action,
        key: str | None,
        body: BatchBody,
        permitted: dict[str, Entry],
    ) -> dict[str, Command]:
        """The command for each workload on which the caller is allowed to act."""
        caller, batch = caller_of(request), key or str(uuid4())
        by = body.by if body.by is not None and caller is ANONYMOUS else caller.name
        admin = await self._guard.may(request, Right("create", f"workloads/{action}"))
        commands = {}
        for uid in permitted:
            name = f"{batch}:{uid}"
            request_id = name if caller is ANONYMOUS else own(caller, name)
            # The store assigns the id and the time.
            commands[uid] = Command(
                *(0, uid, action, by, request_id, 0.0), why=body.why or "", admin=admin
            )
        return commands

    async def _refusals(
        self,
        action: Action,
        targets: dict[str, BatchTarget],
        visible: dict[str, Entry],
        commands: dict[str, Command],
    ) -> dict[str, str]:
        """Why workloads get no command, by uid."""
        waiting: set[str] | None = None
        refusals = {}
        for uid, target in targets.items():
            entry, command = visible.get(uid), commands.get(uid)
            if entry is None:
                refusals[uid] = "it does not exist, or you are not allowed to see it"
                continue
            if command is None:
                refusals[uid] = (
                    f"you may not create workloads/{action} in namespace {entry.namespace}"
                )
                continue
            why = None if command.admin else reserved_to_admins(entry, action)
            why = why or other_attempt(entry, target.attempt)
            if why is None and (why := objection(entry, action)) is not None:
                if waiting is None:
                    waiting = {earlier.uid for earlier in await self._store.commands()}
                if uid in waiting:  # an earlier command can change its state
                    why = None
            if why is not None and await self._store.get_command(command.request_id) is None:
                refusals[uid] = why
        return refusals

    async def _costs(self, action: Action, entries: Sequence[Entry]) -> dict[str, Cost]:
        evicted = [entry.uid for entry in entries if entry.state.live and action in EVICTING]
        if not evicted or self._diagnoser is None:
            return {}
        return dict(await self._diagnoser.eviction_costs(evicted))

    async def _keep(
        self, commands: dict[str, Command], accepted: Sequence[Entry], refusals: dict[str, str]
    ) -> dict[str, CommandView]:
        """Store the commands; adds refusals of keys that were used for something else."""
        kept = {}
        for entry in accepted:
            try:
                command = await self._store.add_command(commands[entry.uid])
            except (Conflict, TooManyCommands) as error:
                refusals[entry.uid] = str(error)
                continue
            kept[entry.uid] = command_view(command, entry.ref)
        return kept


def _item(
    uid: str,
    action: Action,
    entry: Entry | None,
    refusal: str | None,
    costs: dict[str, Cost],
    command: CommandView | None,
) -> BatchItemView:
    accepted = entry is not None and refusal is None
    evicts = entry is not None and accepted and entry.state.live and action in EVICTING
    cost = costs.get(uid)
    return BatchItemView(
        uid=uid,
        workload=entry.ref if entry is not None else None,
        attempt=entry.attempt if entry is not None else None,
        refusal=refusal,
        evicts=evicts,
        pods=entry.started_pods if entry is not None and evicts else 0,
        gpus=rounded(entry.gpus) if entry is not None and evicts else 0.0,
        lost_gpu_seconds=(cost.lost_work if cost is not None else None) if evicts else 0,
        command=command,
    )


def _view(action: Action, workloads: list[BatchItemView]) -> BatchView:
    lost = [item.lost_gpu_seconds for item in workloads]
    known = [seconds for seconds in lost if seconds is not None]
    return BatchView(
        action=action,
        accepted=sum(item.refusal is None for item in workloads),
        evicted=sum(item.evicts for item in workloads),
        pods=sum(item.pods for item in workloads),
        gpus=sum(item.gpus for item in workloads),
        lost_gpu_seconds=sum(known) if len(known) == len(lost) else None,
        items=workloads,
    )


def _summary(view: BatchView) -> str:
    """For the audit log: what was requested of which workloads."""
    refs = [item.workload or item.uid for item in view.items if item.refusal is None]
    refused = f"; {len(view.items) - len(refs)} refused" if len(view.items) > len(refs) else ""
    return f"{view.action} of {counted(len(refs), 'workload')}: {some(refs, _LISTED)}{refused}"
