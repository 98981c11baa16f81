"""The table of methods is complete: none that a node serves is missing, and none is in it that there is not."""

from __future__ import annotations

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from iscp.model.access.service_table import RULES, Foreign, Role, Scope
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, feeds_pb2, node_pb2, operator_pb2, search_pb2

SERVED = (access_pb2, admin_pb2, builds_pb2, feeds_pb2, node_pb2, operator_pb2, search_pb2, health_pb2, reflection_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in SERVED
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_method_of_every_service_has_a_rule() -> None:
    assert set(RULES) == set(METHODS)


def test_what_concerns_an_account_can_say_so() -> None:
    """A request that could not name an account would give a caller what is everybody's."""
    for name, rule in RULES.items():
        if rule.scope is Scope.ACCOUNT:
            fields = {each.name for each in METHODS[name].input_type.fields}
            assert fields & {"account", "job", "filter", "registrations", "changes", "updates"}, name


def test_who_only_views_changes_nothing() -> None:
    assert all(rule.role is not Role.VIEWER for rule in RULES.values() if rule.audited)


def test_only_health_is_answered_without_knowing_who_calls() -> None:
    opened = {name.split("/")[1] for name, rule in RULES.items() if rule.scope is Scope.OPEN}
    assert opened == {"grpc.health.v1.Health"}
    of_nodes = {name.split("/")[1] for name, rule in RULES.items() if rule.scope is Scope.NODES}
    assert of_nodes == {"iscp.wire.v1.node.Node"}


def test_what_makes_something_in_an_account_is_refused_in_another() -> None:
    refused = {name.rpartition("/")[2] for name, rule in RULES.items() if rule.foreign is Foreign.REFUSED}
    assert refused == {"Register", "Check", "CreateToken"}
