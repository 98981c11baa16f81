"""Reads events by the classes of OpenLineage's own client, which know each field and each schema's URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openlineage.client import event_v2, facet_v2
from openlineage.client.serde import Serde

FACETS: Mapping[str, Any] = {
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "sql": facet_v2.sql_job.SQLJobFacet,
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "columnLineage": facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet,
    "inputStatistics": facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
    "outputStatistics": facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
}


def official_document(event: Mapping[str, Any]) -> Any:
    """The event, read field by field into the official classes, which refuse what they do not know, and written."""
    given = dict(event)
    assert given.pop("schemaURL") == event_v2.RunEvent._get_schema()
    read = event_v2.RunEvent(
        eventTime=given.pop("eventTime"),
        producer=given.pop("producer"),
        eventType=event_v2.RunState(given.pop("eventType")),
        run=event_v2.Run(**_with_facets(given.pop("run"))),
        job=event_v2.Job(**_with_facets(given.pop("job"))),
        inputs=[event_v2.InputDataset(**_with_facets(each)) for each in given.pop("inputs")],
        outputs=[event_v2.OutputDataset(**_with_facets(each)) for each in given.pop("outputs")],
    )
    assert given == {}
    return Serde.to_dict(read)


def _with_facets(given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("facets", "inputFacets", "outputFacets")
    return {
        name: {key: _facet(key, each) for key, each in value.items()} if name in names else value
        for name, value in given.items()
    }


def _facet(key: str, given: Mapping[str, Any]) -> Any:
    kind, fields = FACETS[key], dict(given)
    assert fields.pop("_schemaURL") == kind._get_schema()
    producer = fields.pop("_producer")
    return kind(producer=producer, **fields)
