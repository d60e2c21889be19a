"""Write one snapshot of the corpus with its recorded plan to a file: ``python -m tests.corpus.extract KEY FILE``.

``queuectl plan --snapshot FILE`` plans it again, and reports whether the plan is the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from queuectl.objects.files.refused_plans import pack
from queuectl.planner import plan
from tests.corpus.answers import digest_of, plain, plan_of
from tests.corpus.check import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("key", help="as `make corpus` prints it")
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    for entry, recorded in pairs(only=given.key):
        if entry.key == given.key:
            snapshot = entry.snapshot()
            made = plan(snapshot)
            # An equal plan keeps the order of its mappings, which the recorded one has lost.
            same = digest_of(plain(made)) == recorded.digest
            given.file.write_bytes(pack(snapshot, made if same else plan_of(recorded), ()))
            return
    parser.error(f"snapshot {given.key} does not exist")


if __name__ == "__main__":
    main()
