"""The dashboard: pages rendered here, from the same ports, views and rights as the REST API, and no build step.

``app`` puts it together; ``pages`` has a module per page; ``placing`` and ``quotas`` make figures of a snapshot; ``actions``
has what may be asked of a workload, ``asked`` what became of it; ``configured`` tells configuration objects, ``starts`` what
a new one begins with, ``draft`` what is typed into their editor, ``changes`` who changed them; ``words`` says how numbers and
times are written. What a page needs of the house is in ``ports``.
"""
