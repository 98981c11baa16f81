"""The classes that consumers of other people's making derive from and use (docs/consumers.md)."""

from typing import TYPE_CHECKING, Any

from iscp.model.values.untrusted_values import import_name

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    # Loaded on first use: without the modules of the extras it is to say what to install.
    if name not in __all__:
        raise AttributeError(f"module 'iscp.consumers.custom' has no attribute {name!r}")
    return import_name("iscp.consumers.custom", name, "iscp.consumers.custom.custom_kind")


def __dir__() -> list[str]:
    return __all__
