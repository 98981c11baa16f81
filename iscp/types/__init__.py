"""The values that clients and searches return and take, and that consumers and triggers of your own are given.

The errors are in `iscp.errors`. Other modules below `iscp` are no interface, and move without a word.
"""

from iscp.model.access.authorization import AuditEntry, TokenRecord
from iscp.model.access.service_table import Role
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangePage,
    ChangeVerb,
    FeedChange,
    JobChange,
    JobName,
    LogLine,
    LogPage,
    LogPlace,
    RegisterRequest,
    SearchAnswer,
    SearchHit,
    SearchWeights,
    UpdateRequest,
)
from iscp.model.api.api_views import (
    Action,
    CheckedJob,
    ClusterView,
    ConsumerInfo,
    EventView,
    JobView,
    LeftOutJob,
    LeftOutRow,
    LeftOutRows,
    NodeView,
    PlacedShard,
    RegisterResult,
    ShardView,
)
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import HistoryEntry, JobMaintenance, MaintenanceFigures, Usage, UsagePart
from iscp.model.job.job_row import Deletion, JobCondition, JobRow, JobState, JobStatus, Reason
from iscp.model.job.start_rule import Comparison, NotBefore, Sample, StartNow, TriggerFacts, VerifyReport
from iscp.model.job.watermark_record import WatermarkRecord
from iscp.model.query_plan import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.model.run.run_result import Forecast, JobForecast, ResultState, RunResult
from iscp.model.spec.spec import (
    ChangeMode,
    ConsumerSpec,
    JobSpec,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    RunFields,
    TriggerSpec,
    TriggerType,
)
from iscp.model.spec.spec_parsing import ViewFields, view_of
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.progress import RunProgress, SnapshotSize, TableSize
from iscp.model.values.totals import AggregateKind, QueryTotals, Total
from iscp.model.values.watermark import DeadLetters, Position, SourceMark, Watermark
from iscp.system.tls.tls_files import Tls, TlsFiles

__all__ = [
    "Action",
    "AggregateKind",
    "AuditEntry",
    "BuildNodeView",
    "BuildRequest",
    "BuildStage",
    "BuildTaskView",
    "BuildView",
    "ChangeCost",
    "ChangeMode",
    "ChangeOutcome",
    "ChangePage",
    "ChangeVerb",
    "CheckedJob",
    "ClusterView",
    "Comparison",
    "ConsumerInfo",
    "ConsumerSpec",
    "DeadLetters",
    "Deletion",
    "EventView",
    "ExplainedOperator",
    "FeedChange",
    "Forecast",
    "HistoryEntry",
    "JobChange",
    "JobCondition",
    "JobForecast",
    "JobKey",
    "JobMaintenance",
    "JobName",
    "JobRow",
    "JobSpec",
    "JobState",
    "JobStatus",
    "JobView",
    "KeptTable",
    "LeftOutJob",
    "LeftOutRow",
    "LeftOutRows",
    "LogLine",
    "LogPage",
    "LogPlace",
    "MaintenanceFigures",
    "NodeView",
    "NotBefore",
    "OnDuplicate",
    "OnReplace",
    "OnSchemaChange",
    "OperatorUpkeep",
    "PlacedShard",
    "Position",
    "QueryExplanation",
    "QueryTotals",
    "Reason",
    "RegisterRequest",
    "RegisterResult",
    "ResultState",
    "Role",
    "RunFields",
    "RunProgress",
    "RunResult",
    "Sample",
    "SearchAnswer",
    "SearchHit",
    "SearchWeights",
    "ShardId",
    "ShardView",
    "SnapshotSize",
    "SourceMark",
    "StartNow",
    "TableSize",
    "TaskState",
    "Tls",
    "TlsFiles",
    "TokenRecord",
    "Total",
    "TriggerFacts",
    "TriggerSpec",
    "TriggerType",
    "UpdateRequest",
    "Usage",
    "UsagePart",
    "VerifyReport",
    "ViewFields",
    "Watermark",
    "WatermarkRecord",
    "view_of",
]
