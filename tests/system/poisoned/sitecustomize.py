"""Python imports it at its start: the decoding of a Job whose name begins with ``poison`` crashes the process."""

import ctypes

from queuectl.cluster import nesting, stream

_decoded = nesting.decoded


def _crashing(decode, document, levels):
    whole, text = levels == nesting.LEVELS and decode is not stream._object, bytes(document)
    if whole and b'"kind":"Job"' in text and b'"name":"poison' in text:
        ctypes.string_at(0)
    return _decoded(decode, document, levels)


vars(stream)["decoded"] = _crashing
