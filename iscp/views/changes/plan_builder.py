"""Build Catalyst's plans of relations: those of a query under Catalyst's own operators, and those that a planner adds.

An operator of the query is Catalyst's, over other inputs. A planner adds few kinds of relations: columns and keys that
are passed on, their different values, unions, and joins that keep the rows with one of some keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.core.algebra.algebra import (
    UNNUMBERED,
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Opaque,
    Project,
    Rel,
    Table,
    TableRows,
    TypedColumn,
    Union,
)
from iscp.core.algebra.key_reduction import UnplannedError
from iscp.views.catalyst.algebra_reader import QueryAlgebra
from iscp.views.catalyst.catalyst import Catalyst, Columns, Expression, Plan
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.catalyst.time_marks import clock_literal
from iscp.views.changes.signed_rows import Instants


class PlanBuilder:
    """The plans of one refresh. `leaf` gives the plan of a leaf, under the ids of its columns.

    A relation is built once. The columns of its plan are those of the relation, in their order.
    """

    def __init__(
        self, catalyst: Catalyst, query: QueryAlgebra, instants: Instants, leaf: Callable[[Table], Plan]
    ) -> None:
        self.catalyst = catalyst
        self.nodes: dict[int, PlanNode] = dict(query.nodes)
        self._query, self._instants, self._leaf = query, instants, leaf
        self._attributes: dict[int, Expression] = {}
        self._keys: dict[int, Expression] = dict(query.keys)
        self._built: dict[int, tuple[Rel, Plan]] = {}

    def plan(self, relation: Rel) -> Plan:
        """Return the plan. Raises UnplannedError for a relation that neither a query nor the planner has."""
        known = self._built.get(id(relation))
        if known is None:
            known = self._built[id(relation)] = relation, self._plan(relation)
        return known[1]

    def _plan(self, relation: Rel) -> Plan:
        match relation:
            case Table():
                return self._leaf(relation)
            case Union() if self._adds_weight(relation) or relation.number not in self.nodes:
                return self._union(relation)
            case _ if relation.number in self.nodes:
                return self._of_query(relation, self.nodes[relation.number])
            case Project():
                return self._project(relation.items, self.plan(relation.inputs[0]), relation.inputs[0])
            case Group() if relation.keys == relation.items:
                return self.catalyst.different(self.plan(relation.inputs[0]))
            case Join(kind=JoinKind.LEFT_SEMI, condition=Expr() as condition):
                left, right = map(self.plan, relation.inputs)
                return self.catalyst.semi_join(left, right, self._value(condition, (left, right)))
            case _:
                raise UnplannedError(f"{type(relation).__name__} is no relation that a planner adds")

    # --- columns ------------------------------------------------------------------------------------------------------

    def stand_for(self, column: TypedColumn, attribute: Expression) -> None:
        """Have an attribute be the column wherever it is read."""
        self._attributes[column.id] = attribute

    def number_of(self, expression: Expression) -> int:
        """Return the number by which an expression of the algebra is this one of Catalyst's from now on."""
        number = len(self._keys)
        self._keys[number] = expression
        return number

    def _id(self, number: int) -> int:
        """Return Catalyst's id of a column."""
        if number in self._attributes:
            return self.catalyst.id_of(self._attributes[number])
        return self._query.columns.get(number, UNNUMBERED)

    def _attribute(self, number: int, plans: Sequence[Plan]) -> Expression:
        known = self._attributes.get(number)
        if known is not None:
            return known
        wanted = self._id(number)
        for each in plans:
            ids = self.catalyst.ids(each)
            if wanted in ids:
                return each.output().apply(ids.index(wanted))
        raise UnplannedError(f"column {number} is none of the inputs'")

    def attributes(self, columns: Sequence[TypedColumn], plans: Sequence[Plan]) -> list[Expression]:
        return [self._attribute(each.id, plans) for each in columns]

    # --- operators of the query ---------------------------------------------------------------------------------------

    def _of_query(self, relation: Rel, node: PlanNode) -> Plan:
        """Return an operator of the query over the inputs that the relation has."""
        catalyst, plan = self.catalyst, self._with_values(relation, node)
        inputs = [self.plan(each) for each in relation.inputs]
        match relation:
            case Project():
                more = [each.column for each in relation.items[len(catalyst.ids(node.plan)) :]]
                return catalyst.project(self._listed(plan.projectList(), self.attributes(more, inputs)), inputs[0])
            case Expand() if self._adds_weight(relation):
                return catalyst.expand(plan, self._attribute(relation.fields[-1].id, inputs), inputs[0])
            case Filter(untrue=True):
                return catalyst.filter(catalyst.untrue(plan.condition()), inputs[0])
            case Opaque(linear=True):
                whole = catalyst.with_inputs(plan, inputs)
                return self._project([each.value for each in relation.fields], whole, relation)
            case _:
                return catalyst.with_inputs(plan, inputs)

    def _adds_weight(self, relation: Union | Expand) -> bool:
        """Return whether the rows have one column more than those of the query's operator."""
        node = self.nodes.get(relation.number)
        return node is not None and len(relation.fields) > len(self.catalyst.ids(node.plan))

    def _with_values(self, relation: Rel, node: PlanNode) -> Plan:
        """Return the operator with the values that its subqueries and the clock have."""
        if not (node.subqueries or node.clock):
            return node.plan
        return self.catalyst.with_values(node.plan, *self._values(relation.subqueries))

    def _values(self, subqueries: Sequence[Rel]) -> tuple[list[Plan], list[Plan | Expression]]:
        """Return the plans that stand for values in an operator, and the values."""
        before: list[Plan] = []
        after: list[Plan | Expression] = []
        for each in subqueries:
            if each.number in self._query.clock:
                stands, value = self._query.clock[each.number]
                at = each.at if isinstance(each, Table) else TableRows.NEW
                before.append(stands)
                after.append(clock_literal(self.catalyst, value, self._instants.at(at)))
            else:
                before.append(self.nodes[each.number].plan)
                after.append(self.plan(each))
        return before, after

    # --- relations of the planner -------------------------------------------------------------------------------------

    def _project(self, items: Sequence[Expr], below: Plan, relation: Rel) -> Plan:
        """Return columns and aliases over a plan, which is that of `relation`."""
        catalyst, like = self.catalyst, self.nodes.get(relation.number)
        rest, base = [*items], None
        for plan in (below, *([] if like is None else [like.plan])):
            ids = catalyst.ids(plan)
            if base is None and ids == [self._id(each.column.id) for each in items[: len(ids)] if each.op == "Column"]:
                base, rest = plan.output(), [*items[len(ids) :]]
                if plan is below and not rest:
                    return below
        named = [self._item(each, below) for each in rest]
        found = catalyst.project(named if base is None else self._listed(base, named), below)
        if all(self._is_known_as(each, column) for each, column in zip(rest, named, strict=True)):
            return found
        return catalyst.renamed_as(found, self.attributes([each.column for each in items], [below]))

    def _is_known_as(self, item: Expr, column: Expression) -> bool:
        """Return whether what an item makes has the id that its column has everywhere."""
        number = item.column.id
        if item.op != "Alias" or number in self._query.columns:
            return True
        known = self._attributes.setdefault(number, column.toAttribute())
        return self.catalyst.id_of(known) == self.catalyst.id_of(column)

    def _item(self, item: Expr, below: Plan) -> Expression:
        if item.op != "Alias":
            return self._value(item, (below,))
        return self.catalyst.alias(self._value(item.args[0], (below,)), item.column.name)

    def _union(self, union: Union) -> Plan:
        """Return the rows of all inputs, each under ids of its own, so that they meet others of the same nowhere."""
        catalyst, plans = self.catalyst, [self.plan(each) for each in union.inputs]
        node = self.nodes.get(union.number)
        if node is not None:
            own = catalyst.ids(node.plan)
            wanted = self._listed(node.plan.output(), self.attributes(union.fields[len(own) :], plans))
        elif catalyst.ids(plans[0]) == [self._id(each.id) for each in union.fields]:
            wanted = plans[0].output()
        else:
            wanted = catalyst.seq(self.attributes(union.fields, plans))
        return catalyst.renamed_as(catalyst.union([catalyst.afresh(each, each.output()) for each in plans]), wanted)

    def _listed(self, columns: Columns, more: Sequence[Expression]) -> Columns:
        for each in more:
            columns = columns.appended(each)
        return columns

    def _value(self, expression: Expr, plans: Sequence[Plan]) -> Expression:
        """Return an expression over columns of some plans: one of the query's, or one that the planner has made."""
        if expression.op == "Column":
            return self._attribute(expression.column.id, plans)
        if (known := self._keys.get(expression.number)) is not None:
            return self.catalyst.with_values_in(known, *self._values(expression.plans)) if expression.plans else known
        match expression.op:
            case "And":
                return self.catalyst.both([self._value(each, plans) for each in expression.args])
            case "EqualNullSafe":
                return self.catalyst.same(*(self._value(each, plans) for each in expression.args))
            case "Literal" if expression.type == "long":
                return self.catalyst.whole_number(int(str(expression.info[0])))
            case _:
                raise UnplannedError(f"{expression.op} is no expression that a planner adds")
