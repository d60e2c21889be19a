"""Frozen values of the field and the workload state machine: no I/O, no clock, no third-party imports.

Everything the other rooms exchange is defined here, so that the planner, the mirror and the adapters agree on words:

- :mod:`quantity`: Kubernetes quantities and :class:`~queuectl.domain.quantity.Resources`
- :mod:`fleet`: nodes, taints, selectors, and the topology tree they form
- :mod:`workload`: what a gang asks for (podsets, shapes, topology requests)
- :mod:`queues`: ClusterQueue, LocalQueue, ResourceFlavor, Topology, priorities
- :mod:`snapshot`: everything one cycle may look at
- :mod:`plan`: what one cycle decided
- :mod:`machine`: the only door through which a workload changes state
- :mod:`records`: what the watch says of jobs and pods
- :mod:`words`: how numbers are said
"""
