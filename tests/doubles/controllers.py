"""The controllers that act between queuectl and its pods, one deterministic pass at a time.

The model has the creation and deletion of pods with their labels and names, the conditions of a suspension, and the
definition of a failure. tests/cluster/conformance.py compares it with the real controllers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from queuectl.domain.fleet import NodeRules
from queuectl.domain.jobs import PodRecord
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.words import format_time
from queuectl.objects import keys
from queuectl.objects.kinds import index_labels, job_resources, leaderworkerset
from queuectl.objects.kinds.job_indexes import read_indexes
from queuectl.objects.kinds.places import PodSetPlace, entries
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import Template, TemplateSpec, WireNode, WirePod
from tests.doubles import (
    appwrappers,
    gangruns,
    lws_operator,
    mpi_operator,
    spark_operator,
    trainer,
)
from tests.doubles.admission import description_of, replicas, suspended
from tests.doubles.apiserver import Document, Server, copied, owner_of
from tests.doubles.known import DESCRIBED, KNOWN
from tests.doubles.quotas import count
from tests.doubles.writing import condition, holds, make_pod

BACKOFF_LIMIT = 6
_INDEXES = index_labels(KNOWN)


def pod_record(document: Document) -> PodRecord:
    return read_pod(msgspec.convert(document, WirePod), _INDEXES)


def gang_of(pod: Document) -> str:
    """The uid of the workload of a pod: the controller of the pod, or the one that the labels of its template name."""
    labels = pod["metadata"].get("labels", {})
    named: str = labels.get(keys.WORKLOAD_LABEL, "")
    return named.partition(".")[0] if keys.KIND_LABEL in labels else owner_of(pod)


def phase(pod: Document) -> str:
    text: str = pod.get("status", {}).get("phase", "Pending")
    return text


def terminating(pod: Document) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def active(pod: Document) -> bool:
    return phase(pod) not in ("Succeeded", "Failed") and not terminating(pod)


class Controllers:
    """All controllers. ``step`` is one pass of each; ``hold_starts`` and ``hold_ends`` stop the kubelets.

    A held end leaves deleted pods Terminating, as a long grace period does; ``slow_nodes``: only on these nodes.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._made = 0
        self._withdrawn: set[str] = set()  # uids of pods whose success no longer counts
        self.hold_starts = False
        self.hold_ends = False
        self.slow_nodes: frozenset[str] = frozenset()

    def step(self) -> bool:
        """Run one pass. Returns whether anything changed."""
        server = self._server
        before = server.version
        self._collect()
        for job in self._server.all("jobs"):
            self._sync_job(job)
        own: dict[str, Callable[[Document], None]] = {
            "JobSet": self._sync_jobset,
            "RayCluster": self._sync_raycluster,
            "RayJob": self._sync_rayjob,
            "MPIJob": partial(mpi_operator.sync, server),
            "GangRun": partial(gangruns.sync, server),
            "TrainJob": partial(trainer.sync, server),
            "AppWrapper": partial(appwrappers.sync, server),
            "SparkApplication": partial(spark_operator.sync, server),
        }
        for one in DESCRIBED:
            sync = own.get(one.kind, self._sync_replicas)
            for job in server.all(one.plural):
                sync(job)
        for leaders in server.all(leaderworkerset.PLURAL):
            lws_operator.sync(server, leaders)
        self._schedule()
        self._run_pods()
        count(self._server)
        return self._server.version != before

    # ---- garbage

    def _collect(self) -> None:
        """Delete pods of deleted owners, and pods on deleted nodes."""
        owners = {
            job["metadata"]["uid"]
            for plural in job_resources(KNOWN)
            for job in self._server.all(plural)
        }
        owners |= {pod["metadata"]["uid"] for pod in self._server.all("pods")}
        for plural in ("rayclusters", "jobsets", "jobs"):
            for job in self._server.all(plural):
                if owner_of(job) and owner_of(job) not in owners:
                    self._server.remove(plural, job)
                    owners.discard(job["metadata"]["uid"])
        nodes = {"", *(name for _, name in self._server.objects["nodes"])}
        for pod in self._server.all("pods"):
            if pod["spec"].get("nodeName", "") not in nodes:
                self._server.remove("pods", pod)
            elif (owner := owner_of(pod)) and owner not in owners and not terminating(pod):
                self._server.delete("pods", pod)

    # ---- jobs

    def _edit(self, job: Document, change: Callable[[Document], None]) -> None:
        self._server.edit(KNOWN[job["kind"]].plural, job, change)

    def _suspend(self, job: Document, pods: list[Document]) -> None:
        """Set the condition at once, while pods still terminate. Finished pods stay."""
        for pod in pods:
            if active(pod):
                self._server.delete("pods", pod)

        def change(d: Document) -> None:
            condition(d, "Suspended", "True", self._server.clock())
            if holds(d, "Running"):
                condition(d, "Running", "False", self._server.clock())
            d["status"].pop("startTime", None)
            d["status"]["active"] = 0

        self._edit(job, change)

    def _resume(self, job: Document) -> None:
        def change(d: Document) -> None:
            if holds(d, "Suspended"):
                condition(d, "Suspended", "False", self._server.clock())
            status = d.setdefault("status", {})
            status.setdefault("startTime", format_time(self._server.clock()))

        self._edit(job, change)

    def _end(self, job: Document, kind: str) -> None:
        def change(d: Document) -> None:
            condition(d, kind, "True", self._server.clock())
            d["status"]["active"] = 0

        self._edit(job, change)

    def _sync_job(self, job: Document) -> None:
        pods = self._server.owned(job["metadata"]["uid"])
        if holds(job, "Complete") or holds(job, "Failed"):
            self._delete_active(pods)
            return
        if suspended(job):
            self._suspend(job, pods)
            return
        self._resume(job)
        spec = job["spec"]
        parallelism = spec.get("parallelism", 1)
        completions = spec.get("completions", None if "parallelism" in spec else 1)
        if spec.get("completionMode") == "Indexed":
            for pod in [p for p in pods if active(p) and int(_index(p)) >= (completions or 0)]:
                self._server.delete("pods", pod)
            pods = self._server.owned(job["metadata"]["uid"])
            above = [pod for pod in pods if int(_index(pod)) >= (completions or 0)]
            self._withdrawn |= {p["metadata"]["uid"] for p in above if phase(p) == "Succeeded"}
        done = [
            pod
            for pod in pods
            if phase(pod) == "Succeeded" and pod["metadata"]["uid"] not in self._withdrawn
        ]
        failed = [pod for pod in pods if phase(pod) == "Failed" and not terminating(pod)]
        running = [pod for pod in pods if active(pod)]
        per_index = spec.get("backoffLimitPerIndex")
        failures = Counter(map(_index, failed)) if per_index is not None else Counter()
        given_up = {index for index, count in failures.items() if count > per_index}
        too_many = per_index is None and len(failed) > spec.get("backoffLimit", BACKOFF_LIMIT)
        if too_many or (given_up and len(done) + len(given_up) >= completions):
            self._end(job, "Failed")
        elif _is_success(spec, {*map(_index, done)}) or (
            done and (len(done) >= completions if completions else not running)
        ):
            self._end(job, "Complete")
        else:
            wanted = (
                parallelism
                if completions is None
                else min(parallelism, completions - len(done) - len(given_up))
            )
            if completions is None and done:
                wanted = len(running)
            indexed = spec.get("completionMode") == "Indexed"
            held = len(set(map(_index, running))) if indexed else len(running)
            first_without_node = sorted(running, key=lambda pod: bool(pod["spec"].get("nodeName")))
            for pod in first_without_node[: max(0, held - wanted)]:
                self._server.delete("pods", pod)
            self._make_job_pods(
                job, wanted - len(running), {*map(_index, done + running), *given_up}
            )
        self._count(job, len(done), len(failed))
        if spec.get("completionMode") == "Indexed":
            self._list_indexes(job, {*map(_index, done)}, given_up)

    def _make_job_pods(self, job: Document, missing: int, taken: set[str]) -> None:
        meta = job["metadata"]
        base = {
            "batch.kubernetes.io/job-name": meta["name"],
            "batch.kubernetes.io/controller-uid": meta["uid"],
        }
        indexes = (
            str(n) for n in range(job["spec"].get("completions") or 0) if str(n) not in taken
        )
        for _ in range(missing):
            self._made += 1
            labels, middle = base, ""
            if job["spec"].get("completionMode") == "Indexed":
                index = next(indexes)
                labels = {**base, "batch.kubernetes.io/job-completion-index": index}
                middle = f"-{index}"
            name = f"{meta['name']}{middle}-{self._made:05d}"
            make_pod(self._server, job, job["spec"]["template"], name, labels)

    def _count(self, job: Document, done: int, failed: int) -> None:
        pods = [p for p in self._server.owned(job["metadata"]["uid"]) if active(p)]

        def change(d: Document) -> None:
            d["status"] |= {"active": len(pods), "succeeded": done, "failed": failed}

        self._edit(job, change)

    def _sync_jobset(self, jobset: Document) -> None:
        if holds(jobset, "Completed") or holds(jobset, "Failed"):
            return
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                self._make_job(jobset, replicated, index)
        uid = jobset["metadata"]["uid"]
        own = [job for job in self._server.all("jobs") if owner_of(job) == uid]
        for job in own:
            self._align(jobset, job)
        status = "True" if suspended(jobset) else "False"
        at = self._server.clock()
        counts = Counter(
            job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
            for job in own
            if holds(job, "Complete")
        )

        def change(d: Document) -> None:
            condition(d, "Suspended", status, at)
            d["status"]["replicatedJobsStatus"] = [
                {"name": one["name"], "succeeded": counts[one["name"]]}
                for one in d["spec"]["replicatedJobs"]
            ]

        self._edit(jobset, change)
        if any(holds(job, "Failed") for job in own):
            self._end(jobset, "Failed")
        elif all(holds(job, "Complete") for job in own):
            self._end(jobset, "Completed")

    def _make_job(self, jobset: Document, replicated: Document, index: int) -> None:
        """Also of a suspended JobSet."""
        meta, role = jobset["metadata"], replicated["name"]
        name = f"{meta['name']}-{role}-{index}"
        if (meta["namespace"], name) in self._server.objects["jobs"]:
            return
        labels = {
            "jobset.sigs.k8s.io/jobset-name": meta["name"],
            "jobset.sigs.k8s.io/replicatedjob-name": role,
            "jobset.sigs.k8s.io/job-index": str(index),
        }
        spec = copied(replicated["template"]["spec"]) | {"suspend": suspended(jobset)}
        spec.setdefault("completionMode", "Indexed")
        spec.setdefault("completions", spec.setdefault("parallelism", 1))
        spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
        owner = {"kind": "JobSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        own = {"name": name, "namespace": meta["namespace"], "labels": labels}
        self._server.create(
            "jobs",
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": own | {"ownerReferences": [owner]},
                "spec": spec,
            },
        )

    def _align(self, jobset: Document, job: Document) -> None:
        """Suspend or resume a Job as its JobSet. The labels and gates of the template change when it is resumed."""
        if suspended(jobset) == suspended(job) or holds(job, "Complete"):
            return
        role = job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
        [template] = [
            one["template"]["spec"]["template"]
            for one in jobset["spec"]["replicatedJobs"]
            if one["name"] == role
        ]

        def change(d: Document) -> None:
            d["spec"]["suspend"] = suspended(jobset)
            if not suspended(jobset):
                d["spec"]["template"]["metadata"]["labels"] |= template["metadata"]["labels"]
                gates = template["spec"].get("schedulingGates", [])
                d["spec"]["template"]["spec"]["schedulingGates"] = gates

        self._edit(job, change)

    def _sync_raycluster(self, cluster: Document) -> None:
        """It has no end. Pods that ended are created again, also under another name."""
        pods, at = self._server.owned(cluster["metadata"]["uid"]), self._server.clock()
        if suspended(cluster):
            for pod in pods:
                if not terminating(pod):
                    self._server.delete("pods", pod)
        else:
            for pod in pods:
                if phase(pod) in ("Succeeded", "Failed") and not terminating(pod):
                    self._server.delete("pods", pod)
            for entry in entries(description_of(cluster).podsets, cluster):
                self._make_ray_pods(cluster, entry, pods)
        stopped = suspended(cluster) and not self._server.owned(cluster["metadata"]["uid"])
        status = "True" if stopped else "False"
        self._edit(cluster, lambda d: condition(d, "RayClusterSuspended", status, at))

    def _make_ray_pods(self, cluster: Document, entry: PodSetPlace, pods: list[Document]) -> None:
        """The missing pods of a group. A worker has the least index that no other one has."""
        index_label, name = "ray.io/worker-group-replica-index", cluster["metadata"]["name"]
        group = entry.podset if entry.index is not None else "headgroup"
        present = [p for p in pods if p["metadata"]["labels"]["ray.io/group"] == group]
        taken = {p["metadata"]["labels"].get(index_label) for p in present}
        free = (str(number) for number in range(entry.count()) if str(number) not in taken)
        for _ in range(entry.count() - len(present)):
            self._made += 1
            labels = {"ray.io/cluster": name, "ray.io/group": group}
            labels |= {index_label: next(free)} if entry.index is not None else {}
            template: Document = entry.template  # type: ignore[assignment]
            make_pod(self._server, cluster, template, f"{name}-{group}-{self._made:05d}", labels)

    def _sync_rayjob(self, job: Document) -> None:
        """A cluster, and a Job once all pods of the cluster run, whose end is the end of both."""
        state = job.get("status", {}).get("jobDeploymentStatus")
        uid = job["metadata"]["uid"]
        [cluster, submitter] = (
            next((one for one in self._server.all(plural) if owner_of(one) == uid), None)
            for plural in ("rayclusters", "jobs")
        )
        if state in ("Complete", "Failed"):
            if cluster is not None:
                self._server.remove("rayclusters", cluster)
            return
        now = "Running"
        if suspended(job):
            for plural, one in (("rayclusters", cluster), ("jobs", submitter)):
                if one is not None:
                    self._server.remove(plural, one)
            now = "Suspended" if cluster is submitter is None else "Suspending"
        elif cluster is None:
            name = f"{job['metadata']['name']}-{self._made:05d}"
            self._make_child(job, "ray.io/v1", "RayCluster", name, job["spec"]["rayClusterSpec"])
            now = "Initializing"
        elif submitter is None:
            pods = self._server.owned(cluster["metadata"]["uid"])
            now = "Initializing"
            if pods and all(phase(pod) == "Running" for pod in pods):
                spec = {"backoffLimit": 2, "template": job["spec"]["submitterPodTemplate"]}
                self._make_child(job, "batch/v1", "Job", job["metadata"]["name"], spec)
        elif holds(submitter, "Complete") or holds(submitter, "Failed"):
            now = "Complete" if holds(submitter, "Complete") else "Failed"
        status = {"jobDeploymentStatus": now}
        status |= {"jobStatus": "SUCCEEDED"} if now == "Complete" else {}
        self._edit(job, lambda d: d.setdefault("status", {}).update(status))

    def _make_child(
        self, parent: Document, version: str, kind: str, name: str, spec: Document
    ) -> None:
        """Labels of the parent are copied to it, its queue too."""
        meta = parent["metadata"]
        owner = {"kind": parent["kind"], "name": meta["name"], "uid": meta["uid"]}
        self._made += 1
        document: Document = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": dict(meta.get("labels", {})) if kind == "RayCluster" else {},
                "ownerReferences": [owner | {"controller": True}],
            },
            "spec": copied(spec),
        }
        self._server.create(KNOWN[kind].plural, document)

    def _list_indexes(self, job: Document, done: set[str], failed: set[str]) -> None:
        def change(d: Document) -> None:
            d["status"] |= {
                "completedIndexes": ",".join(sorted(done, key=int)),
                "failedIndexes": ",".join(sorted(failed, key=int)),
            }

        self._edit(job, change)

    def _sync_replicas(self, job: Document) -> None:
        pods = self._server.owned(job["metadata"]["uid"])
        if holds(job, "Succeeded") or holds(job, "Failed"):
            return  # cleanPodPolicy None: running pods run on
        if suspended(job):
            self._suspend(job, pods)
            return
        self._resume(job)
        if any(phase(pod) == "Failed" and not terminating(pod) for pod in pods):
            self._end(job, "Failed")
            return
        if self._succeeded(job, pods):
            self._end(job, "Succeeded")
            return
        for kind, replica in replicas(job).items():
            for index in range(replica.get("replicas", 1)):
                self._make_replica(job, kind.lower(), index, replica["template"])

    def _succeeded(self, job: Document, pods: list[Document]) -> bool:
        """Whether the pods that decide on the end have succeeded: a chief or a master, otherwise worker 0 of a TFJob, otherwise each worker."""
        present = replicas(job)
        leading: list[str] = [kind for kind in ("Chief", "Master") if kind in present]
        decisive = (leading or ["Worker"])[0]
        mine = {
            p
            for pod in pods
            if phase(pod) == "Succeeded" and (p := _replica(pod))[0] == decisive.lower()
        }
        if job["kind"] == "TFJob" and not leading:
            return ("worker", "0") in mine
        if job["spec"].get("elasticPolicy") and not leading:
            return bool(mine)
        wanted: int = present[decisive].get("replicas", 1)
        return len(mine) >= wanted

    def _make_replica(self, job: Document, kind: str, index: int, template: Document) -> None:
        name = job["metadata"]["name"]
        labels = {
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/replica-type": kind,
            "training.kubeflow.org/replica-index": str(index),
        }
        make_pod(self._server, job, template, f"{name}-{kind}-{index}", labels)

    def _delete_active(self, pods: list[Document]) -> None:
        for pod in pods:
            if active(pod):
                self._server.delete("pods", pod)

    # ---- scheduler and kubelets

    def _schedule(self) -> None:
        """Bind pods without gates to the first node that fits, or mark them as unschedulable."""
        nodes = [
            read_node(msgspec.convert(node, WireNode)).node for node in self._server.all("nodes")
        ]
        used: dict[str, Resources] = {}
        waiting = []
        for pod in self._server.all("pods"):
            record = pod_record(pod)
            if record.node and not record.terminal:
                used[record.node] = used.get(record.node, NOTHING) + record.requests
            elif not record.node and record.alive:
                waiting.append((pod, record))
        for pod, record in waiting:
            if pod["spec"].get("schedulingGates") or record.scheduler:
                continue
            rules = _rules(pod)
            for node in nodes:
                if not node.ready or rules.refusal(node) is not None:
                    continue
                free = node.allocatable - used.get(node.name, NOTHING)
                if record.requests.fits(free):
                    used[node.name] = used.get(node.name, NOTHING) + record.requests
                    self._bind(pod, node.name)
                    break
            else:
                self._unschedulable(pod)

    def _bind(self, pod: Document, node: str) -> None:
        def change(d: Document) -> None:
            d["spec"]["nodeName"] = node
            condition(d, "PodScheduled", "True", self._server.clock())

        self._server.edit("pods", pod, change)

    def _unschedulable(self, pod: Document) -> None:
        at = self._server.clock()
        self._server.edit(
            "pods", pod, lambda d: condition(d, "PodScheduled", "False", at, "Unschedulable")
        )

    def _run_pods(self) -> None:
        silent = {
            node["metadata"]["name"]
            for node in self._server.all("nodes")
            if not holds(node, "Ready")
        }
        for pod in self._server.all("pods"):
            node = pod["spec"].get("nodeName", "")
            if node in silent:
                continue
            if terminating(pod):
                self._stop_pod(pod, node)
            elif node and phase(pod) == "Pending" and not self.hold_starts:
                self.set_phase(pod, "Running")

    def _stop_pod(self, pod: Document, node: str) -> None:
        """End a pod and remove it, as its kubelet does. The API server removes a pod without a node."""
        if node in self.slow_nodes or (node and self.hold_ends):
            return
        if node and phase(pod) in ("Pending", "Running"):
            self.set_phase(pod, "Failed")
        self._server.remove("pods", pod)

    def set_phase(self, pod: Document, to: str) -> None:
        """Set the phase as a kubelet does. A running pod is Ready."""
        at = self._server.clock()

        def change(d: Document) -> None:
            d.setdefault("status", {})["phase"] = to
            condition(d, "Ready", "True" if to == "Running" else "False", at)

        self._server.edit("pods", pod, change)


def _is_success(spec: Document, done: set[str]) -> bool:
    """Whether these indexes are the success of the Job by its successPolicy."""
    for rule in (spec.get("successPolicy") or {}).get("rules", ()):
        named = rule.get("succeededIndexes")
        every = range(spec.get("completions", 0))
        among = {str(n) for n in (every if named is None else read_indexes(named, 1000))}
        if len(done & among) >= rule.get("succeededCount", len(among)):
            return True
    return False


def _index(pod: Document) -> str:
    text: str = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "")
    return text


def _replica(pod: Document) -> tuple[str, str]:
    """Type and index."""
    labels = pod["metadata"]["labels"]
    keys = ("training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index")
    kind, index = (str(labels.get(key, "")) for key in keys)
    return kind, index


def _rules(pod: Document) -> NodeRules:
    template = Template(spec=msgspec.convert(pod["spec"], TemplateSpec))
    return read_podset("main", 1, template, "").rules
