"""System tests on each supported version of Kubernetes: admit, preempt, requeue, and restarts of the controller and the API server.

The tests are those of tests/system. The fixture ``installation`` of this folder runs them on each version.
"""

from __future__ import annotations

import pytest

from tests.system.test_default_queue import (  # noqa: F401
    test_a_job_without_a_queue_is_managed_there_and_left_alone_elsewhere,
)
from tests.system.test_gangs import (  # noqa: F401
    test_a_failed_pod_is_replaced_in_its_slot,
    test_a_job_without_indexes_runs_too,
    test_a_preemptor_starts_when_its_victim_has_left_and_the_victim_runs_again,
    test_a_pytorchjob_is_suspended_at_birth_and_gone_through_by_the_real_operator,
    test_twenty_gangs_submitted_at_once_all_run_and_end,
)
from tests.system.test_kills import (  # noqa: F401
    test_the_api_server_restarts_while_gangs_start,
    test_the_controller_is_killed_at_every_step,
)
from tests.system.test_lifecycle import (  # noqa: F401
    test_a_gang_is_held_and_released_while_the_controller_is_killed,
    test_a_victim_gets_notice_before_its_eviction,
)
from tests.system.test_queues import (  # noqa: F401
    test_a_failed_start_is_repeated_on_other_nodes,
)
from tests.system.test_refusals import (  # noqa: F401
    test_a_user_cannot_drop_the_gate_of_a_pod,
    test_a_user_cannot_resume_a_managed_job,
    test_kueues_label_queues_as_well,
    test_two_different_queue_labels_are_refused_at_creation,
)

pytestmark = pytest.mark.system
