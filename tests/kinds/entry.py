"""The part of the matrix that depends on the kind: how to make a gang of some pods, and how to end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from queuectl.demo.scenario import FAIL_SECONDS, Document, PodSetManifest
from queuectl.domain.jobs import PodRecord
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from queuectl.objects.kinds import JobKinds
from tests.system.actions import finish, reason, until_known, until_reason
from tests.system.installation import Workspace

FEATURES: Final = {
    "admit": "It is created suspended, or its pods are created gated. It waits for quota, and starts with all its pods.",
    "place": "All its pods are in one rack, as its annotation requires.",
    "preempt": "A gang of higher priority evicts it, and starts after its pods have ended.",
    "requeue": "It keeps its place in the queue after an eviction, and runs again as its second attempt.",
    "repair": "A pod that is lost takes its slot again, and a pod of a lost node moves. The other pods run on.",
    "ranks": "Its ranks are in the order of the racks.",
    "partial": "It starts with fewer pods, if its annotation permits that.",
    "elastic": "It starts with its minimum number of pods, grows, and loses its highest ranks to a gang of higher priority.",
    "finish": "Its end is recorded, and its GPUs are free for the next gang.",
}
"""Name and meaning. tests/kinds/test_matrix.py has a test for each."""

NO_PARTIAL: Final = "Only a Job can start with fewer pods."
NO_ELASTIC: Final = "Its operator passes a fixed number of pods to its program."
WITHOUT: Final = {"partial": NO_PARTIAL, "elastic": NO_ELASTIC}


class Make(Protocol):
    """Makes the object, or the pods, for the LocalQueue ``main``."""

    def __call__(
        self, name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
    ) -> Document | Sequence[Document]: ...


@dataclass(frozen=True)
class Entry:
    """A kind in the matrix.

    Attributes:
        kind: its name in KINDS, or that of work without a kind in KINDS.
        make: work with so many pods in all, at least 4. Its podsets are in one topology group, if the pods require a level.
        operator: the operator that runs it, of ``queuectl.localcluster.operators``; "" = Kubernetes.
        deciding: the podset whose end is the end of the gang; "" = all podsets.
        outlives_deletion: it runs on after the deletion of one of its pods. Otherwise only the failure of a pod is repaired.
        replaced: the podset of which a pod can be lost while the others run on; "" = each podset.
        end: what else ends the gang, after the pods of ``deciding`` have succeeded; None = nothing.
        unranked: podsets whose pods have no index.
        gangs: the names of its gangs; by default, it is one gang with its name.
        alone: each of its pods is a gang.
        without: features that cannot be tested, with the reason as a sentence.
    """

    kind: str
    make: Make
    operator: str = ""
    deciding: str = ""
    outlives_deletion: bool = True
    replaced: str = ""
    end: Callable[[Workspace, str], None] | None = None
    unranked: tuple[str, ...] = ()
    gangs: Callable[[Gang], list[str]] = lambda gang: [gang.name]
    alone: bool = False
    without: Mapping[str, str] = field(default_factory=lambda: WITHOUT)

    def documents(
        self, name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
    ) -> Sequence[Document]:
        """The objects of work of these pods."""
        made = self.make(name, namespace, pods, priority_class)
        return [made] if isinstance(made, dict) else made

    def submit(
        self,
        workspace: Workspace,
        name: str,
        pods: int,
        *,
        priority: str | None = None,
        **shape: Any,
    ) -> Gang:
        """Create work of so many pods with 8 GPUs each."""
        shaped = PodSetManifest(pods, gpus=8, **shape)
        made = self.documents(name, workspace.namespace, shaped, priority)
        return self.create(workspace, name, pods, made)

    def create(
        self, workspace: Workspace, name: str, pods: int, documents: Sequence[Document]
    ) -> Gang:
        """Create these objects, of which so many pods can run."""
        stored = []
        for one in documents:
            stored.append(workspace.submit(one))
            if one["kind"] == "TrainingRuntime":
                until_known(workspace, one)
        return Gang(self, workspace, name, pods, documents, stored)


@dataclass(frozen=True)
class Gang:
    """Work in a workspace: one gang, or a gang for each pod.

    Attributes:
        pods: their number.
        documents: as its user wrote them.
        stored: as admission made them.
    """

    entry: Entry
    workspace: Workspace
    name: str
    pods: int
    documents: Sequence[Document]
    stored: Sequence[Document]

    @property
    def names(self) -> list[str]:
        """Of its gangs."""
        return self.entry.gangs(self)

    @property
    def created_held(self) -> bool:
        """Whether admission made it so that no pod can start: suspended, or as a pod with the gate."""
        return all(_held(one, self.workspace.installation.kinds) for one in self.stored)

    @property
    def resumed(self) -> bool:
        """Whether its object, if it can be suspended, is not."""
        kinds, client = self.workspace.installation.kinds, self.workspace.client
        queued = [one for one in self.stored if one["kind"] in kinds]
        now = [client.get(client.path_of(one)) for one in queued]
        return not any(kinds[one["kind"]].is_suspended(one) for one in now)

    @property
    def released(self) -> list[PodRecord]:
        """Its pods that have or had a place, and have not ended by themselves."""
        found = self.workspace.pods(self.name)
        return [one for one in found if not one.gated and not one.terminal]

    def until(self, state: str) -> list[dict[str, Any]]:
        """Wait until all its gangs are in the state."""

        def reached() -> bool:
            names = self.names
            return bool(names) and all(self.workspace.state(one) == state for one in names)

        self.workspace.until(reached, f"{self.name} {state}")
        return [self.workspace.workload(one) for one in self.names]

    def until_waiting(self) -> None:
        """Wait until all its gangs are pending, and the first one waits for quota."""
        self.until("Pending")
        until_reason(self.workspace, self.names[0], "Pending", "WaitingForQuota")

    def until_whole(self) -> None:
        """Wait until queuectl knows all pods of its pending gangs. A gang without them holds up no other one."""

        def whole() -> bool:
            found = [reason(self.workspace, one) for one in self.names]
            return all(state == "Pending" and code != "WaitingForPods" for state, code in found)

        self.workspace.until(whole, f"all pods of {self.name} wait")

    def until_stopped(self) -> None:
        """Wait until no pod with a place is left."""
        self.workspace.until(lambda: not self.released, f"{self.name} has no pod with a place")

    def runs(self) -> list[PodRecord]:
        """Wait until it runs, and until the recording has its pods, which it can have later than queuectl."""
        found = f"{self.pods} pods of {self.name} run"
        self.workspace.until_running(self.name, self.pods, lambda _: True, found)
        self.until("Running")
        return self.workspace.running(self.name)

    def slots(self) -> dict[tuple[str, int | None], str | None]:
        """The node of each slot whose pod runs."""
        return {(p.podset, p.rank): p.node for p in self.workspace.running(self.name)}

    def finish(self) -> None:
        """Let the pods succeed whose end is the end of the gang."""
        for pod in self.workspace.running(self.name):
            if self.entry.deciding in ("", pod.podset):
                finish(self.workspace, pod.name)
        if self.entry.end is not None:
            self.entry.end(self.workspace, self.name)

    def losable(self) -> list[PodRecord]:
        """Its running pods that can be lost while the others run on."""
        found = self.workspace.running(self.name)
        return [pod for pod in found if self.entry.replaced in ("", pod.podset)]

    def lose(self, pod: PodRecord) -> None:
        """Lose a pod as its kind can bear it."""
        path = f"/api/v1/namespaces/{self.workspace.namespace}/pods/{pod.name}"
        if self.entry.outlives_deletion:
            self.workspace.client.delete(path)
        else:
            failed = {"metadata": {"annotations": {FAIL_SECONDS: "0"}}}
            self.workspace.client.patch(path, failed)
        self.create_again()

    def create_again(self) -> None:
        """As the program that made pods which no controller makes again."""
        bare = {d["metadata"]["name"]: d for d in self.documents if d["kind"] == "Pod"}
        path = f"/api/v1/namespaces/{self.workspace.namespace}/pods"

        def whole() -> bool:
            metas = [one["metadata"] for one in self.workspace.client.get(path)["items"]]
            missing = {*bare} - {one["name"] for one in metas if "deletionTimestamp" not in one}
            for name in missing:
                with suppress(ApiServerError):  # the pod with its name still ends
                    self.workspace.client.create(path, bare[name])
            return not missing

        if bare:
            self.workspace.until(whole, f"the pods of {self.name} exist again")

    def remove(self) -> None:
        """Delete it with its pods."""
        for one in self.documents:
            path = self.workspace.client.path_of(one)
            self.workspace.client.delete(path, propagationPolicy="Background")
            self.workspace.made.remove(path)


def _held(document: Document, kinds: JobKinds) -> bool:
    kind = kinds.get(document["kind"])
    if kind is None:
        # Other objects than pods are not held: admission holds the pods that their controllers make.
        return document["kind"] != "Pod" or keys.GATE in str(document["spec"])
    templates = kind.templates(document)
    return kind.is_suspended(document) and all(keys.GATE in str(one) for one in templates)


def racks(pods: list[PodRecord]) -> list[str]:
    """The racks of the pods, in their order."""
    return [str(pod.node).rsplit("-", 1)[0] for pod in pods]
