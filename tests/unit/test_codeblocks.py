"""The commands and outputs of a page are those that a reader sees."""

from __future__ import annotations

import pytest

from tests.support.codeblocks import Shown, code, commands, inline_commands, transcript

PAGE = """# Page

Run `queuectl get nodes` first:

```shell
# a comment
kubectl version   # it's short
for n in 1 2; do
  echo "$n"; done

kubectl get nodes |
  grep 'a
b'
```

```text
a
  b
```

1. In a list:

    ```shell
    cat > queue.yaml <<'EOF'
    kind: "Cohort
    # not a comment
    EOF
    queuectl apply -f queue.yaml
    ```

Text.

```yaml
kind: Job
```
"""


def test_the_output_belongs_to_the_last_command_of_the_block_before_it() -> None:
    loop = 'for n in 1 2; do\n  echo "$n"; done'
    written = "cat > queue.yaml <<'EOF'\nkind: \"Cohort\n# not a comment\nEOF"
    assert transcript(PAGE) == [
        Shown("kubectl version   # it's short", ()),
        Shown(loop, ()),
        Shown("kubectl get nodes |\n  grep 'a\nb'", ("a", "  b")),
        Shown(written, ()),
        Shown("queuectl apply -f queue.yaml", ()),
    ]
    assert [block.splitlines()[-1] for block in code(PAGE)] == [
        "b'",
        "  b",
        "queuectl apply -f queue.yaml",
        "kind: Job",
    ]
    assert inline_commands(PAGE) == ["queuectl get nodes"]


@pytest.mark.parametrize("block", ["", "# only a comment\n", "echo 'a\n", "cat <<EOF\na\n"])
def test_a_block_without_a_whole_command_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="block"):
        commands(block)
