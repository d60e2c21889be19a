"""What the editor holds when a new configuration object is begun: valid, small, and to be changed."""

from __future__ import annotations

from typing import Final

from queuectl.web.words import iso

STARTS: Final = {
    "ClusterQueue": """\
apiVersion: queuectl.dev/v1
kind: ClusterQueue
metadata:
  name: team-a
spec:
  namespaceSelector: {} # every namespace; left out, it takes none
  queueingStrategy: BestEffortFIFO # or StrictFIFO: nobody is passed
  # cohortName: research # lends to, and borrows from, the others of it
  preemption:
    withinClusterQueue: LowerPriority
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu] # all that pods ask for
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
  name: default # takes the jobs that name no queue
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
  # parentName: company # from which it borrows too
  resourceGroups: # what its members share and none of them owns
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
  nodeLabels: # which nodes are of this flavor
    nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
  topologyName: datacenter # without it quota is counted, but no nodes are chosen
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
  add: 8 # or nominalQuota: in place of the queue's own
  reason: paper deadline
""",
    "WorkloadPriorityClass": """\
apiVersion: queuectl.dev/v1
kind: WorkloadPriorityClass
metadata:
  name: urgent
value: 1000 # the larger one goes first
description: goes before all others
""",
    "Configuration": """\
apiVersion: queuectl.dev/v1
kind: Configuration
metadata:
  name: default
waitForPodsReady:
  timeout: 10m # a start that takes longer is given up and tried again
""",
}
"""By kind. Days of a span are filled in by :func:`start_of`."""
_WEEK: Final = 7 * 86400.0


def start_of(kind: str, now: float) -> str:
    """The text that a new object of this kind begins with. ``now``: unix seconds."""
    days = {"{today}": now, "{next_week}": now + _WEEK}
    text = STARTS[kind]
    for mark, at in days.items():
        text = text.replace(mark, iso(at).partition("T")[0])
    return text
