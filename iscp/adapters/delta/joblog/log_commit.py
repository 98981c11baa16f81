"""One commit of the job log, with what identifies it for whoever searches or checks the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from iscp.adapters.delta.joblog.log_check import COMMIT_ACTIONS, COMMIT_TABLE, COMMIT_VERSION
from iscp.adapters.delta.log.commits import COMMIT_ID

CommitMode = Literal["append", "overwrite"]


def put_commit(
    table: DeltaTable, actions: Sequence[AddAction], mode: CommitMode, commit_id: str, txns: Sequence[Transaction]
) -> None:
    """Have the storage put it at exactly the version after the table's. Raises what deltalake raises."""
    table.create_write_transaction(
        list(actions),
        mode,
        table.schema(),
        commit_properties=CommitProperties(
            custom_metadata={
                COMMIT_ID: commit_id,
                COMMIT_TABLE: str(table.metadata().id),
                COMMIT_VERSION: str(table.version() + 1),
                COMMIT_ACTIONS: str(len(actions) + len(txns)),
            },
            max_commit_retries=0,
            app_transactions=list(txns) or None,
        ),
    )
