"""The sources of GPU utilization, of faults of GPUs, and of the CPU and memory of pods, as the settings configure them."""

from __future__ import annotations

from dataclasses import replace

from queuectl.control.ports import ContainerSource, HealthSource, UseSource
from queuectl.control.settings import MetricNames, Settings, UtilizationSettings
from queuectl.domain.errors import BadInput
from queuectl.domain.job_usage import UsageSources
from queuectl.domain.words import comma_separated
from queuectl.telemetry.signal.containers import KUBELET_JOBS, ContainerMetrics
from queuectl.telemetry.signal.exporters import DNS, ExporterSource
from queuectl.telemetry.signal.health import VENDORS_HEALTH
from queuectl.telemetry.signal.names import HONORED, RENAMED, VENDORS, ExporterNames, Gauge
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.prometheus_api import PrometheusApi
from queuectl.telemetry.signal.several import SeveralVendors
from queuectl.telemetry.signal.trust import JOBS, Trust, labels_of, names_of


def metric_names(utilization: UtilizationSettings) -> tuple[ExporterNames, ...]:
    """The metric names of each vendor, with the configured replacements.

    Raises:
        BadInput: there are replacements, and several vendors.
    """
    known = [
        VENDORS[vendor].prefixed(utilization.amd_prefix) if vendor == "amd" else VENDORS[vendor]
        for vendor in utilization.vendors
    ]
    if len(known) == 1:
        return (_replaced(known[0], utilization.names),)
    if utilization.names != MetricNames():
        raise BadInput(
            "QUEUECTL_UTILIZATION__NAMES needs one vendor in QUEUECTL_UTILIZATION__VENDOR"
        )
    return tuple(known)


def _replaced(vendor: ExporterNames, configured: MetricNames) -> ExporterNames:
    device = comma_separated(configured.device or "")
    return replace(
        vendor,
        busy=_gauge(configured.busy, configured.busy_full, vendor.busy) or vendor.busy,
        coarse=_gauge(configured.coarse, configured.coarse_full, vendor.coarse),
        tensor=_gauge(configured.tensor, None, vendor.tensor),
        memory_busy=_gauge(configured.memory_busy, configured.memory_busy_full, vendor.memory_busy),
        memory_used=configured.memory_used or vendor.memory_used,
        memory_free=configured.memory_free or vendor.memory_free,
        device=device or vendor.device,
    )


def _gauge(name: str | None, full: float | None, vendor: Gauge | None) -> Gauge | None:
    if vendor is None:
        return Gauge(name, full or 1.0) if name else None
    return Gauge(name or vendor.name, full or vendor.full)


def trust(utilization: UtilizationSettings, vendor: str) -> Trust:
    """The scrape jobs whose series count: the configured ones, or else those of the vendor's installers.

    Raises:
        BadInput: a name or a label is invalid, or namespaces are configured although the namespace of the exporter is not known.
    """
    names = "QUEUECTL_UTILIZATION__TRUSTED_NAMESPACES"
    namespaces = names_of(utilization.trusted_namespaces, names)
    if namespaces and utilization.labels == "pod":
        raise BadInput(
            f"{names} needs QUEUECTL_UTILIZATION__LABELS=exported_pod: where honor_labels is on, a series "
            "has the namespace of the pod that it is about, and not that of its exporter"
        )
    jobs = names_of(utilization.trusted_jobs, "QUEUECTL_UTILIZATION__TRUSTED_JOBS")
    return Trust(jobs or JOBS[vendor], namespaces, _labels(utilization))


def _labels(utilization: UtilizationSettings) -> tuple[tuple[str, str], ...]:
    return labels_of(utilization.series_labels, "QUEUECTL_UTILIZATION__SERIES_LABELS")


def use_source(settings: Settings) -> UseSource | None:
    """The source of GPU utilization; None without one.

    Raises:
        BadInput: two sources are configured, a URL is invalid, or a trusted name is invalid.
    """
    utilization, url = settings.utilization, settings.prometheus_url
    exporters = comma_separated(utilization.exporters)
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
                raise BadInput(f"{name}: {one!r} is not an http:// or https:// URL")
    if utilization.ca_file is not None and not utilization.ca_file.is_file():
        raise BadInput(
            f"QUEUECTL_UTILIZATION__CA_FILE: the file {utilization.ca_file} does not exist"
        )
    names = metric_names(utilization)
    if exporters:
        return ExporterSource(
            exporters,
            names=names,
            scrape_seconds=utilization.sample_seconds,
            retention_seconds=utilization.retention_seconds,
            trust_slices=utilization.trust_slices,
        )
    if not url:
        return None
    sources = [
        _prometheus(url, utilization, each, vendor)
        for each, vendor in zip(names, utilization.vendors, strict=True)
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


def container_source(settings: Settings) -> ContainerSource | None:
    """The source of the CPU and the memory of pods: the Prometheus; None without one.

    Raises:
        BadInput: a name is invalid.
    """
    url, utilization = settings.prometheus_url, settings.utilization
    if not url:
        return None
    jobs = names_of(utilization.container_jobs, "QUEUECTL_UTILIZATION__CONTAINER_JOBS")
    api = PrometheusApi(
        url,
        token_file=utilization.token_file,
        ca_file=utilization.ca_file,
        timeout=utilization.timeout_seconds,
    )
    return ContainerMetrics(api, Trust(jobs or KUBELET_JOBS, labels=_labels(utilization)))


def usage_sources(settings: Settings) -> UsageSources:
    """The measurements that the settings configure."""
    prometheus = bool(settings.prometheus_url)
    return UsageSources(
        gpus=prometheus or bool(settings.utilization.exporters), containers=prometheus
    )


def _prometheus(
    url: str, utilization: UtilizationSettings, names: ExporterNames, vendor: str
) -> PrometheusSource:
    rules = {"auto": None, "on": True, "off": False}[utilization.recording_rules]
    health = VENDORS_HEALTH[vendor]
    return PrometheusSource(
        url,
        names=names,
        trust=trust(utilization, vendor),
        scrape_seconds=utilization.sample_seconds,
        labels={"auto": None, "pod": HONORED, "exported_pod": RENAMED}[utilization.labels],
        rules=rules if len(utilization.vendors) == 1 or vendor == "nvidia" else False,
        trust_slices=utilization.trust_slices,
        token_file=utilization.token_file,
        ca_file=utilization.ca_file,
        timeout=utilization.timeout_seconds,
        health=health.prefixed(utilization.amd_prefix) if vendor == "amd" else health,
    )
