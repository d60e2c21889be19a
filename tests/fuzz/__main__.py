"""Run the fuzzer for some time, and print its figures. The exit code is 1 if an input shows a defect or a pair of features never occurs.

python -m tests.fuzz --seconds 3600 --seed 7
python -m tests.fuzz --stage clusters --first 42 --count 1      # one input again, in this process

The stages take turns. Each runs in a child process: an input that ends the process, or takes longer than the limit, is reported like the
others, and the stage continues after it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Final

from tests.fuzz.child import STAGES, child, stages
from tests.fuzz.figures import Figures, Result
from tests.fuzz.process import Child, handled

SLICE_SECONDS: Final = 20.0
"""A stage runs for this time before the next one does."""


def fuzz(seconds: float, seed: int, names: list[str]) -> list[Figures]:
    """Run the stages in turn."""
    figures = {name: Figures(name, STAGES[name]) for name in names}
    following = dict.fromkeys(names, seed)
    process, end = child(), time.monotonic() + seconds
    while time.monotonic() < end:
        for name in names:
            until = min(end, time.monotonic() + SLICE_SECONDS)
            while time.monotonic() < until:
                _one(process, figures[name], following[name])
                following[name] += 1
    process.stop()
    return list(figures.values())


def _one(process: Child, figures: Figures, seed: int) -> None:
    answer = process.handle(figures.name, seed)
    if isinstance(answer, str):
        figures.ended.append(seed)
        answer = (Result(defects=[answer]), 0.0)
    result, took = answer
    figures.note(seed, result, took)
    if result.defects:
        _print(figures.name, seed, result)


def _print(name: str, seed: int, result: Result) -> None:
    again = f"python -m tests.fuzz --stage {name} --first {seed} --count 1"
    print(f"-- {name} {seed}: {again}", *result.defects, sep="\n", flush=True)


def repeated(name: str, first: int, count: int) -> Figures:
    """Handle these inputs in this process."""
    figures = Figures(name, frozenset())
    with stages() as made:
        for seed in range(first, first + count):
            began = time.monotonic()
            result = handled(made[name].run, seed)
            figures.note(seed, result, time.monotonic() - began)
            if result.defects:
                _print(name, seed, result)
    return figures


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", default="", help="of the first inputs; empty = a new one")
    parser.add_argument("--stage", choices=list(STAGES), help="only this one")
    parser.add_argument("--first", type=int, help="repeat inputs: the seed of the first one")
    parser.add_argument("--count", type=int, default=1, help="repeat so many inputs")
    options = parser.parse_args()
    names = [options.stage] if options.stage else list(STAGES)
    if options.first is not None:
        found = [repeated(name, options.first, options.count) for name in names]
    else:
        seed = int(options.seed) if options.seed else random.SystemRandom().randrange(10**9)
        print(f"fuzz: seed {seed}, {options.seconds:.0f} s", flush=True)
        found = fuzz(options.seconds, seed, names)
    print("\n".join(figures.text() for figures in found))
    ended = sum(len(figures.ended) for figures in found)
    wrong = sum(len(figures.defects) for figures in found)
    never = sum(len(figures.missing()) for figures in found)
    inputs = sum(figures.inputs for figures in found)
    print(
        f"{inputs} inputs; ended the process: {ended}; with a defect: {wrong}; features and pairs that never occurred: {never}"
    )
    sys.exit(bool(wrong or never))


if __name__ == "__main__":
    main()
