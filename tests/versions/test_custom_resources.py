"""The CRDs of queuectl.dev on each supported version of Kubernetes: the verbs of kubectl, the rules, and the statuses of a leader.

The tests are those of tests/operations. The fixture ``api`` of this module runs them on each version.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.localcluster.versions import SUPPORTED
from tests.operations.custom import CustomCluster, custom_cluster
from tests.operations.test_crd_kubectl import (  # noqa: F401
    test_apply_creates_changes_and_finds_nothing_to_do,
    test_explain_has_the_sentence_of_the_reference_page,
    test_get_prints_columns_by_short_name_and_by_category,
    test_taints_are_merged_by_key_and_effect_and_tolerations_are_one_value,
    test_two_managers_own_fields_and_entries_of_one_object,
)
from tests.operations.test_crd_validation import (  # noqa: F401
    test_both_readers_agree_on_each_row_of_the_tables_of_rest,
)
from tests.operations.test_object_statuses import (  # noqa: F401
    test_conditions_follow_an_edit_within_two_seconds,
    test_objects_that_do_not_own_the_configuration_say_so_without_counts,
)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module", params=SUPPORTED)
def api(request: pytest.FixtureRequest) -> Iterator[CustomCluster]:
    with custom_cluster(request.param) as cluster:
        yield cluster
