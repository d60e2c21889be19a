"""A real Prometheus on this machine, for tests and the demo: built from source like the parts of a cluster."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2
import yaml

from queuectl.localcluster import build
from queuectl.localcluster.client import get_plain
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.supervisor import Supervisor
from queuectl.localcluster.versions import PROMETHEUS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from queuectl.localcluster.progress import Progress

_NAME = "prometheus"
EXPORTERS_JOB = "dcgm-exporter"
"""What scrapes of GPU exporters are called."""

_START_SECONDS = 30.0
_SILENT = NoProgress()


class Prometheus:
    """A running server; as a context manager it ends with the block, and always with its keeper's owner.

    Attributes:
        url: of its API.
    """

    def __init__(self, home: Path, port: int, program: Path, supervisor: Supervisor) -> None:
        """Use `start`."""
        self._home = home
        self._program = program
        self._supervisor = supervisor
        self._port = port
        self.url = f"http://{LOOPBACK}:{port}"

    @classmethod
    def start(
        cls,
        scrapes: Sequence[dict[str, Any]],
        *,
        scrape_seconds: float = 30.0,
        rules: Sequence[Path] = (),
        history: Path | None = None,
        progress: Progress = _SILENT,
        keeper: Supervisor | None = None,
    ) -> Self:
        """Start one and wait until it answers.

        Args:
            scrapes: its `scrape_configs`.
            scrape_seconds: between scrapes, and between evaluations of rules that do not say.
            rules: files of recording and alerting rules.
            history: what it knows from the beginning: a file in OpenMetrics format, with times.
            progress: is told when it has to be built.
            keeper: with which it ends, and in whose folder it has its own; None = a new one, owned by this process.

        Raises:
            BuildError: it cannot be built.
            LocalClusterError: it does not come up; the message ends with its last words.
        """
        assets = build.ensure(progress, units=(PROMETHEUS,))
        home, keeper = _housed(keeper)
        interval = f"{round(scrape_seconds * 1000)}ms"
        configuration = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(path) for path in rules],
            "scrape_configs": list(scrapes),
        }
        (home / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        (port,) = free_ports(1)
        server = cls(home, port, assets.programs[_NAME], keeper)
        try:
            if history is not None:
                _load(assets.programs["promtool"], history, home / "data")
            server.run()
        except BaseException:
            server.stop()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self) -> None:
        """Start the program, at first or after `kill`, and wait until it answers."""
        arguments = [
            f"--config.file={self._home / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._home / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
            "--log.level=warn",
        ]
        log = self._home / "prometheus.log"
        self._supervisor.start(
            _NAME,
            [self._program, *arguments],
            env={"HOME": str(self._home)},
            cwd=self._home,
            log=log,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            if time.monotonic() > deadline or not self._supervisor.programs()[_NAME].running:
                words = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise LocalClusterError("\n  ".join(["Prometheus does not come up:", *words]))
            time.sleep(0.05)

    def kill(self) -> None:
        """End the program by SIGKILL; what it stored stays."""
        self._supervisor.kill(_NAME)

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""
        self._supervisor.pause(_NAME)

    def resume(self) -> None:
        """Let it go on."""
        self._supervisor.signal(_NAME, signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its files. Harmless when it has ended."""
        if self._supervisor.directory == self._home:
            self._supervisor.shutdown()
        elif self._supervisor.alive():
            if _NAME in self._supervisor.programs():
                self.kill()
            remove_tree(self._home)

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The samples of an instant query, as of a time (unix seconds) or of now.

        Raises:
            LocalClusterError: it was refused, or not answered.
        """
        asked = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        try:
            answer = get_plain(f"{self.url}/api/v1/query", asked).json()
        except httpx2.HTTPError as error:
            raise LocalClusterError(f"Prometheus does not answer: {error}") from error
        if answer["status"] != "success":
            raise LocalClusterError(f"{expression}: {answer['error']}")
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def cpu_seconds(self) -> float:
        """Processor time it has used."""
        answer = get_plain(f"{self.url}/metrics").text
        found = re.search(r"^process_cpu_seconds_total (\S+)$", answer, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def _ready(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return get_plain(f"{self.url}/-/ready").status_code == 200
        return False


def _housed(keeper: Supervisor | None) -> tuple[Path, Supervisor]:
    """A folder that goes with its keeper."""
    if keeper is None:
        home = Path(tempfile.mkdtemp(prefix="queuectl-prometheus-"))
        return home, Supervisor.spawn(home, remove=True)
    home = keeper.directory / _NAME
    home.mkdir()
    return home, keeper


def exporters_job(
    targets_url: str, *, honor_labels: bool, seconds: float | None = None
) -> dict[str, Any]:
    """The scrape configuration of GPU exporters that are found by HTTP.

    Args:
        targets_url: where they are listed.
        honor_labels: keep their `pod` and `namespace`; else those become `exported_pod` and `exported_namespace`, for the
            target has such labels too.
        seconds: between scrapes; None = as the server's are.
    """
    job = {
        "job_name": EXPORTERS_JOB,
        "honor_labels": honor_labels,
        "http_sd_configs": [{"url": targets_url, "refresh_interval": "1s"}],
    }
    if seconds is not None:
        job |= {"scrape_interval": f"{round(seconds * 1000)}ms"}
        job |= {"scrape_timeout": f"{round(seconds * 1000)}ms"}
    return job


def check_rules(*paths: Path) -> str:
    """What promtool says of rule files.

    Raises:
        LocalClusterError: they are wrong; the message says where.
    """
    promtool = build.ensure(_SILENT, units=(PROMETHEUS,)).programs["promtool"]
    answer = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise LocalClusterError(answer.stdout + answer.stderr)
    return answer.stdout


def _load(promtool: Path, history: Path, data: Path) -> None:
    command = ["tsdb", "create-blocks-from", "openmetrics", str(history), str(data)]
    answer = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise LocalClusterError(f"promtool does not take {history}: {answer.stderr.strip()}")
