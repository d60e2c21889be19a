"""Frozen values of the field: no I/O, no clock, no third-party imports.

Everything the other packages exchange is defined here, so that the planner, the mirror and the adapters agree on words:

- :mod:`quantity`: Kubernetes quantities and :class:`~queuectl.domain.quantity.Resources`
- :mod:`fleet`: nodes, taints, selectors, and the topology tree they form
- :mod:`workload`: what a gang asks for (podsets, shapes, topology requests)
- :mod:`queues`: ClusterQueue, LocalQueue, ResourceFlavor, Topology, priorities
- :mod:`snapshot`: the input of one cycle
- :mod:`plan`: what one cycle decided
- :mod:`records`: jobs and pods as the watch reports them
- :mod:`words`: numbers and times in messages
"""
