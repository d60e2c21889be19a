"""The dashboard: pages rendered on the server, from the same ports, views and rights as the REST API, without a build step.

``app`` assembles it, and ``pages`` has a module per page. ``access_scope`` has the rights of the caller, and ``ports`` the
sources of the pages. ``actions`` and ``recent_commands`` are about commands for a workload, ``advice`` about its next step,
``pods`` and ``ranks`` about its pods and its placement, and ``quotas`` about the quota of a queue. ``configuration``,
``draft``, ``starts`` and ``changes`` belong to the configuration pages. ``sorting`` has sortable columns, and ``words`` the
notation of numbers and times.
"""
