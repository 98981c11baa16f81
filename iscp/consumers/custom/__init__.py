"""What consumers of other people's making derive from and use (docs/consumers.md)."""

from iscp.consumers.custom.custom_kind import (
    ChangeDetail,
    ConsumeContext,
    ConsumerSpec,
    CustomConsumer,
    DataType,
    InvalidRequest,
    PermanentError,
    Position,
    Retriever,
    ShardedConsumer,
    TableDescription,
    WatermarkTxn,
    position_of,
)

__all__ = [
    "ChangeDetail",
    "ConsumeContext",
    "ConsumerSpec",
    "CustomConsumer",
    "DataType",
    "InvalidRequest",
    "PermanentError",
    "Position",
    "Retriever",
    "ShardedConsumer",
    "TableDescription",
    "WatermarkTxn",
    "position_of",
]
