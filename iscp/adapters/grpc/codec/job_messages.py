"""Jobs as users see them, their history, comparisons and progress, as messages."""

from __future__ import annotations

from iscp.adapters.grpc.codec.build_messages import BUILD_REQUEST
from iscp.adapters.grpc.codec.json_objects import json_object, object_json
from iscp.adapters.grpc.codec.message_codec import Codec, EnumCodec, FieldCodec
from iscp.core.api.api_views import JobView, LeftOutRow, LeftOutRows
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import Deletion, JobCondition, JobState, JobStatus, Reason
from iscp.core.job.maintenance_figures import JobMaintenance, MaintenanceFigures
from iscp.core.job.usage import Usage
from iscp.core.job.verification import Comparison, Sample, VerifyReport
from iscp.core.values.progress import RunProgress
from iscp.core.values.watermark import SourceMark, Watermark
from iscp.wire.v1 import admin_pb2 as pb

STATES = EnumCodec(JobState, pb.JobState, "state {}")
REASONS = EnumCodec(Reason, pb.Reason, "reason {}")

_SOURCE_MARK = Codec(SourceMark, pb.SourceMark, watermark=Codec(Watermark, pb.SourceMark))
SOURCE_MARKS = FieldCodec(
    lambda marks: [{"uri": uri, **_SOURCE_MARK.fields(mark)} for uri, mark in marks.items()],
    lambda messages: {each.uri: _SOURCE_MARK.from_wire(each) for each in messages},
)
DELETION = FieldCodec(str, lambda text: Deletion(text) if text in {*Deletion} else Deletion.WANTED)
_STATUS = Codec(JobStatus, pb.JobStatus, sources=SOURCE_MARKS, build=BUILD_REQUEST, deletion=DELETION)
_FIGURES = Codec(MaintenanceFigures, pb.UpkeepFigures)

UPKEEP = Codec(JobMaintenance, pb.JobUpkeep, refresh=_FIGURES, purge=_FIGURES)
PROGRESS = Codec(RunProgress, pb.Progress)
_CONDITION = FieldCodec(str, lambda text: text if text in {*JobCondition} else "")
JOB = Codec(
    JobView,
    pb.Job,
    state=STATES,
    reason=REASONS,
    status=_STATUS,
    upkeep=UPKEEP,
    progress=PROGRESS,
    condition=_CONDITION,
)
USAGE = Codec(Usage, pb.Usage)
HISTORY_ENTRY = Codec(HistoryEntry, pb.HistoryEntry, usage=USAGE)

LEFT_OUT_ROWS = Codec(
    LeftOutRows,
    pb.DeadLetterRows,
    rows=Codec(
        LeftOutRow,
        pb.LeftOutRow,
        columns=FieldCodec(
            lambda columns: {"columns_json": object_json(columns)}, lambda message: json_object(message.columns_json)
        ),
    ),
)

_COMPARISON = Codec(Comparison, pb.VerifyReport, samples=Codec(Sample, pb.VerifySample))
VERIFY_REPORT = Codec(VerifyReport, pb.VerifyReport, comparison=_COMPARISON)
