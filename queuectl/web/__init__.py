"""The dashboard: pages rendered here, from the same ports, views and rights as the REST API, and no build step.

``app`` puts it together; ``pages`` has a module per page; ``floor`` and ``quotas`` make figures of a snapshot; ``words`` says
how numbers and times are written. What a page needs of the house is in ``ports``.
"""
