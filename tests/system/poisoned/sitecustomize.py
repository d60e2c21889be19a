"""Python imports it at its start: the decoding of a Job fails if its name begins with ``broken``, and crashes the process if its
name begins with ``poison``.
"""

import ctypes

from queuectl.cluster import stream

_decoded = stream.decoded


def _failing(decode, document, levels):
    whole, text = levels == stream.LEVELS and decode is not stream._object, bytes(document)
    if whole and b'"kind":"Job"' in text:
        if b'"name":"poison' in text:
            ctypes.string_at(0)
        if b'"name":"broken' in text:
            raise KeyError("poison")
    return _decoded(decode, document, levels)


vars(stream)["decoded"] = _failing
