"""The first text of the editor for a new configuration object: small and valid."""

from __future__ import annotations

from typing import Final

from queuectl.web.words import day

STARTS: Final = {
    "ClusterQueue": """\
apiVersion: queuectl.dev/v1
kind: ClusterQueue
metadata:
  name: team-a
spec:
  namespaceSelector: {} # all namespaces; without this field, none
  queueingStrategy: BestEffortFIFO # or StrictFIFO: a blocked gang blocks the gangs after it
  # cohortName: research # borrows quota from its members and lends quota to them
  preemption:
    withinClusterQueue: LowerPriority
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu] # all resources that pods request
    flavors:
    - name: h100
      resources:
      - name: cpu
        nominalQuota: 128
      - name: memory
        nominalQuota: 1Ti
      - name: nvidia.com/gpu
        nominalQuota: 8
""",
    "LocalQueue": """\
apiVersion: queuectl.dev/v1
kind: LocalQueue
metadata:
  name: default # also for jobs that name no queue
  namespace: team-a
spec:
  clusterQueue: team-a
""",
    "Cohort": """\
apiVersion: queuectl.dev/v1
kind: Cohort
metadata:
  name: research
spec:
  # parentName: company # can also borrow from this cohort
  resourceGroups: # quota that all members share
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - name: nvidia.com/gpu
        nominalQuota: 16
""",
    "ResourceFlavor": """\
apiVersion: queuectl.dev/v1
kind: ResourceFlavor
metadata:
  name: h100
spec:
  nodeLabels: # labels of its nodes
    nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
  topologyName: datacenter # without a topology, quota is charged and kube-scheduler chooses the nodes
""",
    "Topology": """\
apiVersion: queuectl.dev/v1
kind: Topology
metadata:
  name: datacenter
spec:
  levels: # node labels, coarse to fine
  - nodeLabel: topology.queuectl.dev/block
  - nodeLabel: topology.queuectl.dev/rack
  - nodeLabel: kubernetes.io/hostname
""",
    "AdmissionCheck": """\
apiVersion: queuectl.dev/v1
kind: AdmissionCheck
metadata:
  name: budget-approval
spec:
  controllerName: queuectl.dev/external # a program reports the state of each workload through REST
  policy:
    timeoutSeconds: 3600 # without an answer, the workload releases its capacity and tries again
""",
    "ProvisioningRequestConfig": """\
apiVersion: queuectl.dev/v1
kind: ProvisioningRequestConfig
metadata: {name: atomic}
spec:
  provisioningClassName: best-effort-atomic-scale-up.autoscaling.x-k8s.io
  managedResources: [nvidia.com/gpu] # a PodSet without these needs no nodes
""",
    "QuotaOverride": """\
apiVersion: queuectl.dev/v1
kind: QuotaOverride
metadata:
  name: deadline
spec:
  clusterQueue: team-a
  flavor: h100
  resource: nvidia.com/gpu
  from: "{today}T00:00:00Z"
  until: "{next_week}T00:00:00Z"
  add: 8 # or nominalQuota, which replaces the quota of the queue
  reason: paper deadline
""",
    "Budget": """\
apiVersion: queuectl.dev/v1
kind: Budget
metadata:
  name: team-a
spec:
  clusterQueue: team-a # or localQueue: NAMESPACE/NAME, namespace, user
  gpuHoursPerMonth: 1000
  whenSpent: Hold # or LowerPriority, with priorityWhenSpent
""",
    "BudgetTopUp": """\
apiVersion: queuectl.dev/v1
kind: BudgetTopUp
metadata:
  name: team-a-{month}
spec:
  budget: team-a
  month: "{month}"
  gpuHours: 100
  reason: paper deadline
""",
    "Reservation": """\
apiVersion: queuectl.dev/v1
kind: Reservation
metadata:
  name: training-run
spec:
  clusterQueue: team-a # only its gangs use the capacity
  from: "{today}T00:00:00Z"
  until: "{next_week}T00:00:00Z"
  # recurrence: FREQ=WEEKLY # a rule of RFC 5545; without it, the Reservation does not repeat
  capacity: # or nodes: [NAME, ...], which are kept for maintenance
    pods: 4
    requests:
      nvidia.com/gpu: 8
    flavor: h100
  # evict: true # gangs that still run there at the start are evicted
  reason: training of the next release
""",
    "WorkloadPriorityClass": """\
apiVersion: queuectl.dev/v1
kind: WorkloadPriorityClass
metadata:
  name: urgent
value: 1000 # larger values are admitted first
description: admitted before all others
""",
    "Configuration": """\
apiVersion: queuectl.dev/v1
kind: Configuration
metadata:
  name: default
waitForPodsReady:
  timeout: 10m # a start that takes longer is evicted and retried
""",
}
"""By kind. :func:`start_of` fills in the dates."""
_WEEK: Final = 7 * 86400.0


def start_of(kind: str, now: float) -> str:
    """The first text of a new object of this kind. ``now``: unix seconds."""
    days = {"{today}": now, "{next_week}": now + _WEEK}
    text = STARTS[kind].replace("{month}", day(now)[:7])
    for mark, at in days.items():
        text = text.replace(mark, day(at))
    return text
