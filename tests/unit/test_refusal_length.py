"""The message of a refusal is bounded, whatever text of a user it quotes: it keeps its beginning, and its end."""

from __future__ import annotations

import json

import pytest

from queuectl.domain.errors import MOST_REFUSAL, BadInput
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import RequestError


@pytest.mark.parametrize("error", [BadInput, RequestError])
def test_a_long_message_keeps_its_beginning_and_its_end(error: type[Exception]) -> None:
    text = str(error(f"spec.field: {'x' * 10**6!r} is not a name"))
    assert len(text) <= MOST_REFUSAL
    assert text.startswith("spec.field: 'xxx")
    assert text.endswith("' is not a name")


def test_the_refusal_of_a_document_does_not_quote_a_long_value_whole() -> None:
    document = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ClusterQueue",
        "metadata": {"name": "a"},
        "spec": {"cohortName": "0-99999," * 2000},
    }
    [read] = read_documents(json.dumps(document))
    with pytest.raises(BadInput) as refused:
        validate(read)
    assert "spec.cohortName" in str(refused.value)
    assert len(str(refused.value)) <= MOST_REFUSAL
