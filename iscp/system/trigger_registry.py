"""Finds triggers of the users' own: the entry points of the group `iscp.triggers` that the configuration allows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points

from iscp.model.job.start_rule import TriggerFacts
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError, TemporaryError
from iscp.model.values.untrusted_values import error_text, named_error, plain_error
from iscp.ports.system import Trigger

GROUP = "iscp.triggers"

NAME_FIELD = "spec.trigger.name"


class TriggerRegistry:
    """Each class is loaded when it is first needed. Code of others runs only if `allow` names it."""

    def __init__(self, allow: Collection[str], entries: Iterable[EntryPoint] | None = None) -> None:
        self._allow = frozenset(allow)
        self._entries = {entry.name: entry for entry in (entry_points(group=GROUP) if entries is None else entries)}
        self._loaded: dict[str, Trigger] = {}

    def check(self, trigger: TriggerSpec) -> None:
        """Refuse what this node cannot evaluate. Raises InvalidRequest."""
        if trigger.job_type is not TriggerType.CUSTOM:
            return
        try:
            self._trigger(trigger.name).validate(trigger.options)
        except InvalidRequest as error:
            raise InvalidRequest.from_error(plain_error(error)) from error
        except BaseException as error:
            raise InvalidRequest(
                f"are refused by the trigger {trigger.name!r}: {named_error(error)}",
                field="spec.trigger.options",
                remedy="Give what that trigger requires",
            ) from error

    def evaluate(self, name: str, facts: TriggerFacts) -> object:
        """Return the answer of the class, whatever that is. Raises IscpError if it cannot be called, or fails."""
        try:
            return self._trigger(name).decide(facts)
        except BaseException as error:  # also SystemExit: foreign code ends no thread of the node
            message = error_text(error) if isinstance(error, IscpError) else named_error(error)
            raise TemporaryError(message, code=ErrorCode.TRIGGER_FAILED) from error

    def _trigger(self, name: str) -> Trigger:
        if name not in self._allow:
            raise InvalidRequest(
                f"{name!r} is not allowed on this node",
                about=NAME_FIELD,
                remedy="Add it to triggers.allow in the node's configuration"
                + (f", or use one of {', '.join(sorted(self._allow))}" if self._allow else ""),
            )
        if name not in self._entries:
            raise InvalidRequest(
                f"{name!r} is not installed on this node",
                about=NAME_FIELD,
                remedy=f"Install a package that has it as an entry point of {GROUP}; "
                f"there are {', '.join(sorted(self._entries)) or 'none'}",
            )
        if name not in self._loaded:
            try:
                self._loaded[name] = self._entries[name].load()()
            except BaseException as error:
                raise InvalidRequest(
                    f"{name!r} cannot be loaded: {named_error(error)}",
                    about=NAME_FIELD,
                    remedy="Repair its package, and restart the node",
                ) from error
        return self._loaded[name]
