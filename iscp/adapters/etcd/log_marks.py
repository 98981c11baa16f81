"""Marks in etcd about the job log: up to which version it was written, and why the owner cannot begin with it.

Either shows the other's loss: the log of etcd's, which goes on from nothing, and etcd of the log's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Delete, Put
from iscp.core.values.errors import ErrorCode, IscpError, JobLogDamaged, StorageError
from iscp.core.values.members import Leader
from iscp.core.values.untrusted_values import error_text, exact_int, exact_name, printable

log = logging.getLogger(__name__)

FORMAT = 1


class EtcdLogMarks:
    """The port `LogMarks` on etcd."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._keys = keys

    def load(self) -> int:
        found = self._client.get(self._keys.job_log)
        if found is None:
            # An owner of an earlier version leaves only this: what is applied was registered.
            return 0 if self._client.get(self._keys.checkpoint) else -1
        try:
            return exact_int(int(found.value), "the job log's version")
        except ValueError as error:  # there was one, as far as is known
            log.warning("etcd.joblog.unreadable", extra={"reason": error_text(error)})
            return 0

    def save(self, leader: Leader, version: int) -> None:
        self._election.write_fenced(leader, Put(self._keys.job_log, str(version).encode()))

    def accept(self, version: int) -> None:
        """Set the end of the log to `version`, whatever was written: a person does so, while no node runs."""
        self._client.txn((), (Put(self._keys.job_log, str(version).encode()),))

    def fault(self) -> IscpError | None:
        found = self._client.get(self._keys.job_log_fault)
        if found is None:
            return None
        try:
            fields = json.loads(found.value)
            if not isinstance(fields, Mapping):
                raise ValueError("it is no object")
            code = ErrorCode(exact_int(fields["code"], "the code"))
            message, remedy = (printable(exact_name(fields[name], name)) for name in ("message", "remedy"))
        except (ValueError, KeyError) as error:
            log.warning("etcd.joblog.unreadable", extra={"reason": error_text(error)})
            return None
        kind = JobLogDamaged if code is ErrorCode.JOB_LOG_DAMAGED else StorageError
        return kind(message, remedy=remedy, code=code)

    def report_fault(self, leader: Leader, fault: IscpError | None) -> None:
        key = self._keys.job_log_fault
        if fault is None:
            self._election.write_fenced(leader, Delete(key))
            return
        fields = {"format": FORMAT, "code": int(fault.code), "message": fault.message, "remedy": fault.remedy}
        # On the lease of the candidacy: what this term could not do is no fault of the next one.
        self._election.write_fenced(leader, Put(key, json.dumps(fields).encode(), self._election.lease_id))
