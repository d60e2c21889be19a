"""A simulation from its setting to its outcome."""

from __future__ import annotations

from collections.abc import Callable

from queuectl.simulate.best_fit import BestFit
from queuectl.simulate.planned import Planned
from queuectl.simulate.policy import Placement, Policy
from queuectl.simulate.results import Outcome, outcome
from queuectl.simulate.run import Run
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Scheduler, World


def simulate(
    setting: Setting, policy: Policy, progress: Callable[[World], None] = lambda _: None
) -> Outcome:
    """Run all jobs of the setting under a policy. The same input gives the same outcome.

    ``progress``: is called after each instant.

    Raises:
        BadInput: the policy cannot serve this setting.
    """
    world = World(setting.free_gpus())
    scheduler = _scheduler(setting, policy, world)
    never_fit = [job for job in setting.jobs if scheduler.never_fits(job)]
    larger = {job.rank for job in never_fit}
    runs = [Run(job) for job in setting.jobs if job.rank not in larger]
    world.run(runs, setting.events, scheduler, progress)
    return outcome(policy.name, setting, runs, never_fit, world)


def _scheduler(setting: Setting, policy: Policy, world: World) -> Scheduler:
    if policy.placement is Placement.BEST_FIT:
        return BestFit(setting, policy.order, world)
    return Planned(setting, policy, world)
