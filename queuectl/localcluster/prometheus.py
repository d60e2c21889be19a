"""A real Prometheus on this machine, for tests and the demo. It is built from source like the components of a cluster."""

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
from queuectl.localcluster.client import START_SECONDS, get_plain
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.keeper import remove_tree
from queuectl.localcluster.layout import LOOPBACK, free_ports
from queuectl.localcluster.progress import NoProgress
from queuectl.localcluster.supervisor import KeeperHandle
from queuectl.localcluster.versions import PROMETHEUS, PROMTOOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuectl.localcluster.progress import StepProgress

_NAME = "prometheus"
EXPORTERS_JOB = "dcgm-exporter"
"""Job name of the scrapes of GPU exporters."""

_SILENT = NoProgress()


class Prometheus:
    """A running server. As a context manager, it ends with the block. It also ends with the owner of its keeper.

    Attributes:
        url: URL of its API.
    """

    def __init__(self, home: Path, port: int, program: Path, supervisor: KeeperHandle) -> None:
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
        progress: StepProgress = _SILENT,
        keeper: KeeperHandle | None = None,
    ) -> Self:
        """Start a server and wait until it answers.

        Args:
            scrapes: its `scrape_configs`.
            scrape_seconds: seconds between scrapes, and the default between evaluations of rules.
            rules: files with recording and alerting rules.
            history: its initial samples: a file in OpenMetrics format, with times.
            progress: receives the steps of a build.
            keeper: the keeper with which it ends, and in whose folder it has its files; None = a new keeper of this process.

        Raises:
            BuildError: it cannot be built.
            LocalClusterError: it does not start; the message ends with the last lines of its log.
        """
        assets = build.ensure(progress, units=(PROMETHEUS,))
        home, keeper = _home_of(keeper)
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
                _load(history, home / "data")
            server.run()
        except BaseException:
            server.stop()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self) -> None:
        """Start the program, also after `kill`, and wait until it answers."""
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
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if time.monotonic() > deadline or not self._supervisor.programs()[_NAME].running:
                words = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise LocalClusterError(
                    "\n  ".join(["Prometheus does not start; end of its log:", *words])
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """End the program by SIGKILL. Its files stay."""
        self._supervisor.kill(_NAME)

    def pause(self) -> None:
        """Freeze it: connections stay open, and no request is answered."""
        self._supervisor.pause(_NAME)

    def resume(self) -> None:
        """Let it continue."""
        self._supervisor.signal(_NAME, signal.SIGCONT)

    def stop(self) -> None:
        """Stop it and remove its files. Without effect if it is stopped."""
        if self._supervisor.directory == self._home:
            self._supervisor.shutdown()
        elif self._supervisor.alive():
            if _NAME in self._supervisor.programs():
                self.kill()
            remove_tree(self._home)

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The samples of an instant query at a time (Unix seconds), or now.

        Raises:
            LocalClusterError: the query was refused or not answered.
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
        """CPU time of the process, in seconds."""
        answer = get_plain(f"{self.url}/metrics").text
        found = re.search(r"^process_cpu_seconds_total (\S+)$", answer, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def _ready(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return get_plain(f"{self.url}/-/ready").status_code == 200
        return False


def _home_of(keeper: KeeperHandle | None) -> tuple[Path, KeeperHandle]:
    """A folder that is removed with its keeper."""
    if keeper is None:
        home = Path(tempfile.mkdtemp(prefix="queuectl-prometheus-"))
        return home, KeeperHandle.spawn(home, remove=True)
    home = keeper.directory / _NAME
    home.mkdir()
    return home, keeper


def exporters_job(targets_url: str, *, honor_labels: bool) -> dict[str, Any]:
    """The scrape configuration of GPU exporters with HTTP service discovery.

    Args:
        targets_url: URL of the service discovery.
        honor_labels: keep their labels `pod` and `namespace`; otherwise these become `exported_pod` and
            `exported_namespace`, because the target has the same labels.
    """
    return {
        "job_name": EXPORTERS_JOB,
        "honor_labels": honor_labels,
        "http_sd_configs": [{"url": targets_url, "refresh_interval": "1s"}],
    }


def check_rules(*paths: Path) -> str:
    """Check rule files with promtool.

    Raises:
        LocalClusterError: a rule is invalid; with promtool's message.
    """
    answer = subprocess.run(
        [build.program(PROMTOOL), "check", "rules", "--lint-fatal", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise LocalClusterError(answer.stdout + answer.stderr)
    return answer.stdout


def _load(history: Path, folder: Path) -> None:
    command: list[str | Path] = [
        build.program(PROMTOOL),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(history),
        str(folder),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise LocalClusterError(f"promtool refuses {history}: {answer.stderr.strip()}")
