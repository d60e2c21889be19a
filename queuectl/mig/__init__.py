"""MIG reconfiguration: queuectl suggests which nodes get another MIG configuration for a gang that waits, or changes them itself.

- :mod:`configurations`: the configurations that a node can get, and the node under each
- :mod:`fixes`: the fewest nodes to reconfigure for a gang, and the gangs that migrate first
- :mod:`search`: the gang for which nodes are reconfigured alongside a plan
- :mod:`changes`: the changes that are active, and the next step of each
- :mod:`reconfigurer`: carries the changes out

The others know it by one port each. :mod:`fixes` is the ``Reconfiguration`` of the diagnoses of the planner. The leader's loop and
its plans know ``MigReconfigurer``, which reads the ``PlanningState`` of state. Nodes and flavors have values of ``domain/mig.py``.
"""
