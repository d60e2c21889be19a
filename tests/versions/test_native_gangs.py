"""queuectl beside the gang scheduling of each version of Kubernetes that has it, with its beta and its alpha gates.

The tests are those of tests/system. The fixture ``native`` of this module runs them on each variant.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.installation import Installation
from tests.system.native_gangs import VARIANTS, NativeGangs, priority_class
from tests.system.test_gangs import (  # noqa: F401
    test_a_failed_pod_is_replaced_in_its_slot,
    test_a_preemptor_starts_when_its_victim_has_left_and_the_victim_runs_again,
    test_a_pytorchjob_is_suspended_at_birth_and_gone_through_by_the_real_operator,
    test_twenty_gangs_submitted_at_once_all_run_and_end,
)
from tests.system.test_native_gangs import (  # noqa: F401
    test_a_gang_of_kubernetes_in_no_queue_has_the_priority_that_its_user_wants,
    test_a_gang_that_names_a_pod_group_of_its_user_does_not_start,
    test_no_user_changes_the_scheduling_objects_of_a_job,
    test_no_user_creates_the_scheduling_objects_of_a_job,
    test_no_user_gives_a_pod_group_of_their_own_to_a_job,
    test_the_pod_group_of_a_job_has_no_priority_of_a_user,
    waiting,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VARIANTS)
def native(request: pytest.FixtureRequest) -> NativeGangs:
    return VARIANTS[request.param]


@pytest.fixture(scope="module")
def installation(native: NativeGangs) -> Iterator[Installation]:
    with native.installed() as made:
        priority_class(made, "rush", 1000)
        yield made
