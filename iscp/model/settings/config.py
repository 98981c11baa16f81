"""Every setting of a node: its default, its unit (at the end of its name), its bounds and what it is for; the waits
that follow from the settings of retries; and the variables of the environment that iscp reads.

A valid configuration is decided here; nothing is known here of files and environment variables (`iscp.app.settings`
reads those). What is written here about a setting is what `docs/configuration.md` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, get_type_hints

from iscp.model.access.security_config import AccountConfig, SecurityConfig
from iscp.model.build.build_task import RETAINED_BYTES_MAX
from iscp.model.job.iteration import Bounds
from iscp.model.settings.embedder_config import EmbedderConfig, EmbeddingConfig
from iscp.model.values.untrusted_values import LogLevel, SettingFault, about, setting, url_fault

# --- settings, section by section -------------------------------------------------------------------------------------

JOBS_NAMED_MAX = 10_000
"""Jobs that `metrics.per_job_max` may name; a node that is to name more does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The metrics of docs/metrics.md. A node without a place for them measures nothing."""

    listen: str = setting("", "Where the node serves its metrics to Prometheus, HOST:PORT; empty: nowhere")
    otlp_endpoint: str = setting("", "URL of an OpenTelemetry collector that takes OTLP by HTTP; empty: none")
    interval_s: float = setting(60.0, "The collector is sent metrics so often, and indexes are measured", least=1.0)
    per_job_max: int = setting(
        500, "Jobs that metrics name, those that lag most; of all others they have sums; at most 10,000", least=0
    )

    @property
    def used(self) -> bool:
        return bool(self.listen or self.otlp_endpoint)


def metrics_faults(config: MetricsConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with where metrics go, and with how many jobs they name."""
    if config.otlp_endpoint and (fault := url_fault(config.otlp_endpoint)):  # not repeated: it may hold a secret
        yield SettingFault("metrics.otlp_endpoint", fault, "Write http://HOST:4318 or https://HOST/PATH")
    if config.per_job_max > JOBS_NAMED_MAX:
        yield SettingFault("metrics.per_job_max", "is too large", f"Give {JOBS_NAMED_MAX} or less")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineageConfig:
    """The receiver of OpenLineage events. See docs/lineage.md."""

    url: str = setting("", "URL that events are posted to, such as http://HOST:5000/api/v1/lineage; empty: none")
    path: str = setting("", "File that events are appended to, each as a line of JSON, instead of a URL; empty: none")
    namespace: str = setting("", "Namespace of the jobs in events; empty: the cluster's name")
    headers_file: str = setting("", "File with headers for the URL, `NAME: VALUE` on each line; empty: none")

    @property
    def used(self) -> bool:
        return bool(self.url or self.path)


def openlineage_faults(lineage: OpenLineageConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with the settings of events."""
    if lineage.url and (fault := url_fault(lineage.url)):
        yield SettingFault("openlineage.url", fault, "Write http://HOST:PORT/PATH, or with https")
    if lineage.url and lineage.path:
        yield SettingFault("openlineage.path", "is given beside openlineage.url", "Give one of the two")
    if lineage.path and not lineage.path.startswith("/"):
        yield SettingFault.about("openlineage.path", f"{lineage.path!r} is not absolute", "Write it from / on")
    if lineage.headers_file and not lineage.url:
        yield SettingFault("openlineage.url", "is missing beside openlineage.headers_file", "Name the receiver")
    if not lineage.namespace.isprintable():
        yield SettingFault("openlineage.namespace", "has signs that cannot be seen", "Use letters, digits and signs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """The receiver of traces. See docs/tracing.md."""

    endpoint: str = setting("", "URL that spans are posted to as OTLP, such as http://HOST:4318/v1/traces; empty: none")
    sample_ratio: float = setting(1.0, "Part of all traces that is recorded, 0 to 1", least=0.0)
    headers_file: str = setting("", "File with headers for the receiver, `NAME: VALUE` on each line; empty: none")


def tracing_faults(tracing: TracingConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with the settings of traces."""
    if tracing.endpoint and (fault := url_fault(tracing.endpoint)):
        yield SettingFault("tracing.endpoint", fault, "Write http://HOST:4318/v1/traces, or with https")
    if tracing.sample_ratio > 1.0:
        yield SettingFault.about("tracing.sample_ratio", f"{tracing.sample_ratio:g} is too large", "Give 1 or less")
    if tracing.headers_file and not tracing.endpoint:
        yield SettingFault("tracing.endpoint", "is missing beside tracing.headers_file", "Name the receiver of traces")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """Searches of indexes that the owner carries out. Programs that search by the library are not bounded by them.

    Calls that wait for their turn count as waits, which `WaitBounds` bounds.
    """

    node_max: int = setting(4, "Searches at a time; others wait for their turn", least=1)
    account_max: int = setting(2, "Of these, searches of indexes of one account", least=1)
    timeout_s: float = setting(
        30.0, "A search that takes longer, with the wait for its turn, fails with TIMEOUT", above=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBounds:
    """Calls of WaitJob, VerifyJob, GetEvents and Search, which wait at the owner, also those by JSON or from other
    nodes; and calls of ReadFeed, which wait at the node that is called.
    """

    node_max: int = setting(200, "Calls that wait at a time; one more is refused with QUEUE_FULL", least=1)
    account_max: int = setting(100, "Of these, calls of one account", least=1)
    caller_max: int = setting(
        50, "Of these, calls of one caller, or, where callers are not known, of one host", least=1
    )


ADMIN_PORT = 7430
"""The port on which a node listens by default."""

PAGE_PORT = 7432
"""The port on which `iscp up` serves the page of its first node, if it is free."""


BUCKETS_MAX = 256
"""Buckets with a key of their own; more are refused at the node's start: one variable names them all."""

DIRECT_BYTES_MAX = 8 * 1024**2
"""Bytes of the files whose changes or rows are read without Spark, where `spark.direct_bytes_max` is not given; others
go to Spark.
"""


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """The etcd in which the cluster meets. Invariant: 0 < `margin_s` < `lease_ttl_s`."""

    endpoints: tuple[str, ...] = setting(("127.0.0.1:2379",), "Addresses of etcd's members, HOST:PORT each")
    prefix: str = setting("/iscp", "All keys begin with it; the cluster's name follows")
    user: str = setting("", "User for etcd's password authentication; empty: none")
    password: str = field(default="", repr=False, metadata=about("The user's password"))
    ca_file: str = setting("", "Certificate authorities to trust (PEM); given: TLS is used")
    cert_file: str = setting("", "Client certificate (PEM)")
    key_file: str = setting("", "The client certificate's key (PEM)")
    lease_ttl_s: float = setting(10.0, "A node that does not renew its lease for so long is gone", least=2.0)
    margin_s: float = setting(2.0, "Writes stop this long before the lease can end", above=0.0)
    request_timeout_s: float = setting(5.0, "Longest wait for an answer of etcd; then the call fails", above=0.0)
    accept_faulty_release: bool = setting(
        False, "Whether a release of etcd is accepted that can damage its data when it is killed, as for trials"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogConfig:
    """The job log, and how the owner writes it."""

    uri: str = field(metadata=about("Directory (it must exist) or URI below which the Delta tables of the job log lie"))
    status_batch_s: float = setting(0.2, "Statuses are gathered for so long before they are written", least=0.0)
    compact_commits: int = setting(500, "Commits after which the log is compacted", least=2)
    compact_interval_s: float = setting(3_600.0, "It is also compacted after this time, if it grew", above=0.0)
    flush_interval_s: float = setting(3_600.0, "Watermarks of idle tables are written so often", above=0.0)
    collect_interval_s: float = setting(3_600.0, "How often rows of dropped jobs are collected", above=0.0)
    keep_dropped_s: float = setting(86_400.0, "How long a dropped job's row is retained", least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """The node's Spark session."""

    master: str = setting("local[*]", "Spark's master: whose executors work; `local[*]`: the node's own JVM")
    driver_memory_mb: int = setting(2_048, "Heap of the driver's JVM", least=512)
    direct_bytes_max: int = setting(
        DIRECT_BYTES_MAX, "Changes and tables whose files have more bytes are read by Spark; 0: all are", least=0
    )
    analysis_memory_mb: int = setting(512, "Heap of the JVM in which users' SQL is analyzed", least=256)
    conf: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Any settings of Spark; they win over spark-defaults.conf. Those that rows depend on are replaced. "
            "Properties that new tables have by default are not taken over by what iscp writes"
        ),
    )


def is_local_master(master: str) -> bool:
    """Return whether Spark's tasks run within the JVM itself with this master, and not on executors elsewhere."""
    return master == "local" or master.startswith("local[")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """A bucket with a key of its own, which `credentials_file` has as `~/.aws/credentials` has it, in the section
    `default`. An empty region or endpoint is that of `storage.s3`.
    """

    credentials_file: str = ""
    region: str = ""
    endpoint: str = ""
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """Tables on S3, or on a store with its API. Credentials come from the usual `AWS_*` variables and roles, but for
    `buckets`, which are reached with keys of their own, and never with those.
    """

    region: str = setting("", "Region of the buckets, `us-east-1` where the store has none; empty: no tables on S3")
    endpoint: str = setting("", "URL of a store other than AWS's own; `http://` is not encrypted")
    buckets: Mapping[str, BucketConfig] = field(
        default_factory=dict,
        metadata=about(
            "`NAME.credentials_file`: file with the key of the bucket NAME, which alone it is reached with; "
            "`NAME.region`, `NAME.endpoint`: where it is, if elsewhere than the others"
        ),
    )

    @property
    def used(self) -> bool:
        return bool(self.region)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """The places where tables may lie besides local paths."""

    self_test: tuple[str, ...] = setting(
        (), "Directories and URIs below which the node tests at its start that it can write safely"
    )
    s3: S3Config = field(default_factory=S3Config)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """The probing of tables. Invariant: `interval_min_s` <= `interval_max_s`."""

    interval_min_s: float = setting(10.0, "Busy tables are probed so often", above=0.0)
    interval_max_s: float = setting(
        300.0, "Idle tables are probed at least so often, and twice in their smallest target lag", above=0.0
    )
    timeout_s: float = setting(
        10.0,
        "If a probe takes longer, its table waits: its lag grows, and nothing of it starts",
        above=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduling of iterations: when they run, and how many at once."""

    concurrency: int = setting(2, "Iterations at once", least=1)
    queue_max: int = setting(10_000, "Most iterations that wait; one more is refused with QUEUE_FULL", least=1)
    iteration_timeout_s: float = setting(3_600.0, "An iteration that takes longer is stopped; 0 or less: never")
    cancel_wait_s: float = setting(
        30.0, "A cancelled iteration may take so long to stop; then the JVM is killed", above=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffConfig:
    """The times at which failed work is tried again. Invariant: `base_s` <= `cap_s`."""

    base_s: float = setting(5.0, "Wait after the first failure; it doubles with each", above=0.0)
    cap_s: float = setting(300.0, "Longest wait between attempts", above=0.0)
    quarantine_after: int = setting(10, "Failures in a row after which a job is quarantined", least=1)
    quarantine_s: float = setting(3_600.0, "A quarantined job is retried so often", above=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """First snapshots of large tables, which all nodes build, range by range."""

    table_bytes_min: int = setting(
        1024**3, "Tables of so many bytes are built by ranges, smaller ones by one node at once; 0: none is", least=0
    )
    range_bytes: int = setting(256 * 1024**2, "Bytes of the source in a range, on average", least=1)
    tables_at_once: int = setting(1, "Tables that are built at a time", least=1)
    kept_bytes_max: int = setting(
        RETAINED_BYTES_MAX, "Bytes of change rows that are stored for a table while it is built; 0: none", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceConfig:
    """Refreshes and purges that consumers of others offer."""

    concurrency: int = setting(
        2, "Number of concurrent refreshes, and of concurrent purges; hanging ones do not count", least=1
    )
    timeout_s: float = setting(600.0, "A refresh or purge that takes longer is given up, and retried; 0 or less: never")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumersConfig:
    """The consumers of others whose code runs in the node."""

    allow: tuple[str, ...] = setting((), "Entry points of `iscp.consumers` that jobs may use in addition to iscp's own")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersConfig:
    """The triggers of others whose code runs in the node to decide when jobs start."""

    allow: tuple[str, ...] = setting((), "Entry points of `iscp.triggers` that custom jobs may name")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """The receivers of notifications on jobs that need somebody; the owner posts. See docs/webhooks.md."""

    webhooks: tuple[str, ...] = field(
        default=(), repr=False, metadata=about("URLs (http, https) that the owner posts notifications of jobs to")
    )
    secret_file: str = setting("", "File with the secret that notifications are signed with; empty: they are not")
    late_after_s: float = setting(
        0.0, "A job that lags by more is reported late, whatever its target lag is; 0: only that counts", least=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The service `Admin` as JSON over HTTP. See docs/gateway.md."""

    listen: str = setting("", "Where the node serves JSON over HTTP, HOST:PORT; empty: nowhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageConfig:
    """The page for browsers, on which a cluster is watched. See docs/page.md."""

    listen: str = setting("", "Where the node serves the page by HTTP, HOST:PORT; empty: nowhere")
    hosts: tuple[str, ...] = setting(
        (), "Names, besides addresses and localhost, by which browsers may open it where callers are not authenticated"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Health checks for callers that cannot do TLS, such as Kubernetes."""

    listen: str = setting("", "Where health alone is served too, by gRPC without TLS, HOST:PORT; empty: nowhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node. Invariants: those of `faults`, which is empty for a valid configuration."""

    node_id: str = field(metadata=about("The node's name in the cluster; the same after a restart"))
    log: JobLogConfig
    cluster: str = setting("default", "The cluster's name; it distinguishes clusters of one etcd")
    listen: str = setting(f"127.0.0.1:{ADMIN_PORT}", "Where the node serves gRPC, HOST:PORT")
    advertise: str = setting("", "How users and nodes reach it, HOST:PORT; empty: as `listen` says")
    data_dir: str = setting(
        "",
        "Scratch space, which need not survive. Empty: a temporary directory, and the node does not know which jobs "
        "have crashed it",
    )
    log_format: LogFormat = field(
        default=LogFormat.JSON, metadata=about("What the node writes on stderr: `json` or `text`")
    )
    log_level: LogLevel = field(
        default=LogLevel.INFO, metadata=about("The lowest level that is logged: `debug`, `info`, `warning` or `error`")
    )
    stop_timeout_s: float = setting(20.0, "An orderly stop may take so long", above=0.0)
    catalog: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("Spark's catalogs: `name.type` = … is passed as `spark.sql.catalog.name.type`"),
    )
    accounts: Mapping[str, AccountConfig] = field(
        default_factory=dict,
        metadata=about(
            "`NAME.certificates`: names in certificates of those who are of the account NAME, with roles; "
            "`NAME.roots`: directories and URIs below which its tables have to lie"
        ),
    )
    embedders: Mapping[str, EmbedderConfig] = field(
        default_factory=dict,
        metadata=about(
            "`NAME.kind`, and that kind's options: embedders that jobs may name. Secrets are in the files that "
            "`NAME.key_file` names"
        ),
    )
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    triggers: TriggersConfig = field(default_factory=TriggersConfig)
    bounds: Bounds = field(default_factory=Bounds)
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    consumers: ConsumersConfig = field(default_factory=ConsumersConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    build: BuildConfig = field(default_factory=BuildConfig)
    upkeep: MaintenanceConfig = field(default_factory=MaintenanceConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    waits: WaitBounds = field(default_factory=WaitBounds)
    search: SearchBounds = field(default_factory=SearchBounds)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    page: PageConfig = field(default_factory=PageConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    openlineage: OpenLineageConfig = field(default_factory=OpenLineageConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)

    @property
    def address(self) -> str:
        """Return the address at which others reach this node."""
        return self.advertise or self.listen

    @property
    def node_name(self) -> str:
        """Return the DNS name that a certificate has if it is one of this cluster's nodes."""
        return self.security.tls.node_name or f"node.{self.cluster}.iscp"

    @property
    def allows_foreign_code(self) -> bool:
        """Return whether code that is not iscp's may run in this process: consumers, triggers or embedders."""
        return bool(self.consumers.allow or self.triggers.allow or self.embedding.allow)

    @property
    def etcd_prefix(self) -> str:
        """Return the prefix of all of this cluster's keys."""
        return f"{self.etcd.prefix.rstrip('/')}/{self.cluster}"


# --- settings as documented -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as documented; `default` is MISSING where it must be given."""

    path: str
    kind: Any
    default: Any
    text: str
    least: float | None = None
    above: float | None = None

    @property
    def required(self) -> bool:
        return self.default is MISSING


_BOUNDS_TEXT = {
    "rows_max": "Most rows that one iteration takes",
    "bytes_max": "Most bytes (of files read) that one iteration takes",
    "versions_max": "Most source versions that one iteration takes",
}


def settings(of: type = NodeConfig, parent: str = "") -> Iterator[Setting]:
    """Yield every setting below `of`, sections after the plain ones, each by its path (`etcd.lease_ttl_s`)."""
    hints = get_type_hints(of)
    sections = []
    for each in fields(of):
        path, kind = parent + each.name, hints[each.name]
        if is_dataclass(kind) and isinstance(kind, type):
            sections.append((kind, f"{path}."))
        elif of is Bounds:
            yield Setting(path, kind, each.default, _BOUNDS_TEXT[each.name], least=1)
        else:
            known = each.metadata
            default = each.default if each.default_factory is MISSING else each.default_factory()
            yield Setting(path, kind, default, known["about"], known["least"], known["above"])
    for kind, path in sections:
        yield from settings(kind, path)


# --- waits before failed work is tried again --------------------------------------------------------------------------
# The random number is passed in.

JITTER = 0.25
"""The part of a wait by which it is shortened at random, so that what failed together does not come back together."""


def jittered_s(wait_s: float, draw: float) -> float:
    """Return `wait_s`, less up to a quarter of it; `draw` is uniform in [0, 1)."""
    return wait_s * (1.0 - JITTER * draw)


def quarantined(config: BackoffConfig, failures: int) -> bool:
    """Return whether a job that failed `failures` times in a row is tried only rarely from now on."""
    return failures >= config.quarantine_after


def doubled_s(config: BackoffConfig, failures: int, draw: float) -> float:
    """Return the wait after the `failures`-th failure in a row (from 1): base, doubled with each, up to the cap."""
    # 2**64 doublings of anything exceed every cap; the limit keeps the number a float.
    doublings = min(max(failures, 1) - 1, 64)
    return jittered_s(min(config.cap_s, config.base_s * 2.0**doublings), draw)


def delay_s(config: BackoffConfig, failures: int, draw: float) -> float:
    """Return the wait of `doubled_s`, or once the job is quarantined that of a quarantine."""
    if quarantined(config, failures):
        return jittered_s(config.quarantine_s, draw)
    return doubled_s(config, failures, draw)
