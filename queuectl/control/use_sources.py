"""The sources of GPU utilization and of faults of GPUs that the settings describe."""

from __future__ import annotations

from dataclasses import replace

from queuectl.control.ports import HealthSource, UseSource
from queuectl.control.settings import MetricNames, Settings, UtilizationSettings
from queuectl.domain.errors import BadInput
from queuectl.telemetry.signal.exporters import DNS, ExporterSource
from queuectl.telemetry.signal.health_names import VENDORS_HEALTH
from queuectl.telemetry.signal.names import HONORED, RENAMED, VENDORS, ExporterNames, Gauge
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.several import SeveralVendors
from queuectl.telemetry.signal.trust import JOBS, Trust, names_of


def metric_names(asked: UtilizationSettings) -> tuple[ExporterNames, ...]:
    """The metric names of each vendor, with the configured replacements.

    Raises:
        BadInput: there are replacements, and several vendors.
    """
    known = [
        VENDORS[vendor].prefixed(asked.amd_prefix) if vendor == "amd" else VENDORS[vendor]
        for vendor in asked.vendors
    ]
    if len(known) == 1:
        return (_replaced(known[0], asked.names),)
    if asked.names != MetricNames():
        raise BadInput(
            "QUEUECTL_UTILIZATION__NAMES needs one vendor in QUEUECTL_UTILIZATION__VENDOR"
        )
    return tuple(known)


def _replaced(vendor: ExporterNames, given: MetricNames) -> ExporterNames:
    device = tuple(label.strip() for label in (given.device or "").split(",") if label.strip())
    return replace(
        vendor,
        busy=_gauge(given.busy, given.busy_full, vendor.busy) or vendor.busy,
        coarse=_gauge(given.coarse, given.coarse_full, vendor.coarse),
        tensor=_gauge(given.tensor, None, vendor.tensor),
        memory_busy=_gauge(given.memory_busy, given.memory_busy_full, vendor.memory_busy),
        memory_used=given.memory_used or vendor.memory_used,
        memory_free=given.memory_free or vendor.memory_free,
        device=device or vendor.device,
    )


def _gauge(name: str | None, full: float | None, vendor: Gauge | None) -> Gauge | None:
    if vendor is None:
        return Gauge(name, full or 1.0) if name else None
    return Gauge(name or vendor.name, full or vendor.full)


def trust(asked: UtilizationSettings, vendor: str) -> Trust:
    """The scrape jobs whose series count: the configured ones, or else those of the vendor's installers.

    Raises:
        BadInput: a name is invalid, or namespaces are configured although the namespace of the exporter is not known.
    """
    names = "QUEUECTL_UTILIZATION__TRUSTED_NAMESPACES"
    namespaces = names_of(asked.trusted_namespaces, names)
    if namespaces and asked.labels == "pod":
        raise BadInput(
            f"{names} needs QUEUECTL_UTILIZATION__LABELS=exported_pod: where honor_labels is on, a series "
            "has the namespace of the pod that it is about, and not that of its exporter"
        )
    jobs = names_of(asked.trusted_jobs, "QUEUECTL_UTILIZATION__TRUSTED_JOBS")
    return Trust(jobs or JOBS[vendor], namespaces)


def use_source(settings: Settings) -> UseSource | None:
    """The source of GPU utilization; None without one.

    Raises:
        BadInput: two sources are configured, a URL is invalid, or a trusted name is invalid.
    """
    asked, url = settings.utilization, settings.prometheus_url
    exporters = [part.strip() for part in asked.exporters.split(",") if part.strip()]
    if url and exporters:
        raise BadInput(
            "QUEUECTL_PROMETHEUS_URL and QUEUECTL_UTILIZATION__EXPORTERS: set only one of the two"
        )
    for name, given in (
        ("QUEUECTL_PROMETHEUS_URL", [url] if url else []),
        ("QUEUECTL_UTILIZATION__EXPORTERS", exporters),
    ):
        for one in given:
            if not one.removeprefix(DNS).startswith(("http://", "https://")):
                raise BadInput(f"{name}: {one!r} is no http:// or https:// URL")
    if asked.ca_file is not None and not asked.ca_file.is_file():
        raise BadInput(f"QUEUECTL_UTILIZATION__CA_FILE: there is no file {asked.ca_file}")
    names = metric_names(asked)
    if exporters:
        return ExporterSource(
            exporters,
            names=names,
            scrape_seconds=asked.sample_seconds,
            retention_seconds=asked.retention_seconds,
            trust_slices=asked.trust_slices,
        )
    if not url:
        return None
    sources = [
        _prometheus(url, asked, each, vendor)
        for each, vendor in zip(names, asked.vendors, strict=True)
    ]
    return sources[0] if len(sources) == 1 else SeveralVendors(sources)


def health_source(settings: Settings) -> HealthSource | None:
    """The source of faults of GPUs: the Prometheus with the metrics of the vendors' exporters; None without one.

    Raises:
        BadInput: a trusted name is invalid.
    """
    url, asked = settings.prometheus_url, settings.utilization
    if not url:
        return None
    sources = [_prometheus(url, asked, VENDORS[vendor], vendor) for vendor in asked.vendors]
    return sources[0] if len(sources) == 1 else SeveralVendors(sources)


def _prometheus(
    url: str, asked: UtilizationSettings, names: ExporterNames, vendor: str
) -> PrometheusSource:
    rules = {"auto": None, "on": True, "off": False}[asked.recording_rules]
    health = VENDORS_HEALTH[vendor]
    return PrometheusSource(
        url,
        names=names,
        trust=trust(asked, vendor),
        scrape_seconds=asked.sample_seconds,
        labels={"auto": None, "pod": HONORED, "exported_pod": RENAMED}[asked.labels],
        rules=rules if len(asked.vendors) == 1 or vendor == "nvidia" else False,
        trust_slices=asked.trust_slices,
        token_file=asked.token_file,
        ca_file=asked.ca_file,
        timeout=asked.timeout_seconds,
        health=health.prefixed(asked.amd_prefix) if vendor == "amd" else health,
    )
