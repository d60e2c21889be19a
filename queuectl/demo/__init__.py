"""`queuectl demo`: a burst of gangs on a real control plane, with a live table and an independent audit.

:mod:`~queuectl.demo.demo_run` runs the demo, and :mod:`~queuectl.demo.scenario` defines its gangs. Tests and benchmarks use
also three of the modules:

- :mod:`~queuectl.demo.scenario`: Jobs, PyTorchJobs and configuration documents as plain dicts
- :mod:`~queuectl.demo.recorder`: records every revision of nodes, jobs and pods from the API server
- :mod:`~queuectl.demo.audit`: replays a recording and checks that gangs are complete, inside their domains, within
  capacity and started once

The audit shares only the readers of :mod:`queuectl.objects` with the controller. It does not use decisions of the controller,
its database or its API.
"""
