"""The values that clients and searches return and take, and that consumers and triggers of your own are given.

The errors are in `iscp.errors`. Other modules below `iscp` are no interface, and move without a word.
"""

from iscp.adapters.tls.endpoint import Tls
from iscp.adapters.tls.tls_files import TlsFiles
from iscp.core.access.access_token import TokenRecord
from iscp.core.access.audit_entry import AuditEntry
from iscp.core.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobName, RegisterRequest, UpdateRequest
from iscp.core.api.api_views import (
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
from iscp.core.api.feed_views import ChangePage, FeedChange
from iscp.core.api.log_lines import LogLine, LogPage, LogPlace
from iscp.core.api.search_views import SearchAnswer, SearchHit, SearchWeights
from iscp.core.build.api_builds import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.build.build_request import BuildRequest
from iscp.core.job.custom_trigger import NotBefore, StartNow, TriggerFacts
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import Deletion, JobCondition, JobRow, JobState, JobStatus, Reason
from iscp.core.job.maintenance_figures import JobMaintenance, MaintenanceFigures
from iscp.core.job.usage import Usage, UsagePart
from iscp.core.job.verification import Comparison, Sample, VerifyReport
from iscp.core.job.watermark_record import WatermarkRecord
from iscp.core.query.query_explanation import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.core.run.run_forecast import Forecast, JobForecast
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.spec.spec import (
    ChangeMode,
    ConsumerSpec,
    JobSpec,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    TriggerSpec,
    TriggerType,
)
from iscp.core.spec.spec_fields import RunFields
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.access_roles import Role
from iscp.core.values.ids import JobKey, ShardId
from iscp.core.values.progress import RunProgress, SnapshotSize, TableSize
from iscp.core.values.totals import AggregateKind, QueryTotals, Total
from iscp.core.values.watermark import DeadLetters, Position, SourceMark, Watermark

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
