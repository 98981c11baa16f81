/*
 * Copyright the iscp authors.
 *
 * Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except
 * in compliance with the License. You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software distributed under the License
 * is distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express
 * or implied. See the License for the specific language governing permissions and limitations under
 * the License.
 */
package io.iscp.plans;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CreateStruct$;
import org.apache.spark.sql.catalyst.expressions.Descending$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayStructFields;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.SortArray;
import org.apache.spark.sql.catalyst.expressions.SortDirection;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SortOrder$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.CollectList;
import org.apache.spark.sql.catalyst.expressions.aggregate.CollectSet;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.expressions.aggregate.Last;
import org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.MaxBy;
import org.apache.spark.sql.catalyst.expressions.aggregate.MinBy;
import org.apache.spark.sql.catalyst.expressions.aggregate.Mode;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Aggregate functions that go by the order in which rows come: `first` is that of the least row, by all of its columns.
 *
 * <p>Spark gives each of these answers too, in some run. Several functions of a group go by the same order of its rows.
 * Where the query orders the rows below, they go by that first.
 */
final class TiedFunctions {
    private final List<Expression> order;
    private final boolean descending;

    /** `order`: of a group's rows. */
    TiedFunctions(List<Expression> order, boolean descending) {
        this.order = order;
        this.descending = descending;
    }

    static boolean isTied(Expression function) {
        return function instanceof First
                || function instanceof Last
                || function instanceof MaxBy
                || function instanceof MinBy
                || function instanceof Mode
                || function instanceof CollectList
                || function instanceof CollectSet
                || function instanceof ListAgg;
    }

    static LogicalPlan settled(Aggregate aggregate) {
        // Spark's `first` of one value, in an aggregate that it made itself
        boolean first = !isOfDistincts(aggregate);
        if (!aggregate.expressions().exists(each -> each.exists(part -> isTiedAggregate(part, first)))) {
            return aggregate;
        }
        List<Expression> groups = CollectionConverters.asJava(aggregate.groupingExpressions());
        Sort sort = RowOrders.sortBelow(aggregate.child(), true);
        LogicalPlan rows = sort == null ? aggregate.child() : RowOrders.unsorted(aggregate.child());
        List<SortOrder> given = sort == null ? List.of() : CollectionConverters.asJava(sort.order());
        List<SortOrder> order = RowOrders.extended(given, rows, groups);
        if (!isOneWay(given)) {
            rows = RowOrders.numbered(rows, groups, order);
            order = List.of(RowOrders.ascending(rows.output().last()));
        }
        if (order.isEmpty()) {
            return aggregate;
        }
        List<Expression> columns = new ArrayList<>();
        order.forEach(each -> columns.add(each.child()));
        TiedFunctions functions = new TiedFunctions(columns, !order.get(0).isAscending());
        return aggregate.withNewChildren(TieBreaking.seq(List.of(rows)))
                .transformExpressionsUp(new Rewriting<>(
                        part -> isTiedAggregate(part, first) ? functions.settled((AggregateExpression) part) : part));
    }

    private static boolean isTiedAggregate(Expression expression, boolean first) {
        if (!(expression instanceof AggregateExpression)) {
            return false;
        }
        AggregateFunction function = ((AggregateExpression) expression).aggregateFunction();
        return isTied(function) && (first || !(function instanceof First));
    }

    /** Whether structs of the columns compare as the order has it, or the other way round. */
    private static boolean isOneWay(List<SortOrder> order) {
        for (SortOrder each : order) {
            if (each.isAscending() != order.get(0).isAscending()
                    || !each.nullOrdering().equals(each.direction().defaultNullOrdering())) {
                return false;
            }
        }
        return true;
    }

    /** Whether Spark made it of an aggregate of several DISTINCT columns: its `first` has one value to choose from. */
    private static boolean isOfDistincts(Aggregate aggregate) {
        boolean twice = aggregate.child() instanceof Aggregate
                && aggregate.child().children().head() instanceof Expand;
        if (!twice) {
            return false;
        }
        for (Attribute each : CollectionConverters.asJava(aggregate.child().output())) {
            if (each.name().equals("gid")) {
                return true;
            }
        }
        return false;
    }

    private Expression settled(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        Expression value = function.children().head();
        if (expression.isDistinct()) {
            return RowOrders.isOrderable(value)
                    ? new TiedFunctions(List.of(value), false).ofDistinct(expression)
                    : expression;
        }
        if (function instanceof CollectSet && RowOrders.isOrderable(value)) {
            return new SortArray(expression);
        }
        return function instanceof CollectList && RowOrders.isOrderable(value)
                ? values(with(expression, listing(value, false)), false)
                : with(expression, chosen(function));
    }

    private Expression ofDistinct(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        boolean listed = function instanceof CollectList || function instanceof CollectSet;
        boolean ordered = function instanceof ListAgg && !((ListAgg) function).orderExpressions().isEmpty();
        if (listed || ordered) {
            return listed ? new SortArray(expression) : expression;
        }
        return with(expression, chosen(function));
    }

    AggregateFunction chosen(AggregateFunction function) {
        Expression value = function.children().head();
        if (function instanceof First) {
            return extreme(value, row(((First) function).ignoreNulls() ? value : null, List.of()), descending);
        }
        if (function instanceof Last) {
            return extreme(value, row(((Last) function).ignoreNulls() ? value : null, List.of()), !descending);
        }
        if (function instanceof MaxBy || function instanceof MinBy) {
            Expression by = function.children().apply(1);
            return extreme(value, row(by, List.of(by)), function instanceof MaxBy);
        }
        if (function instanceof ListAgg) {
            return inOrder((ListAgg) function);
        }
        boolean open = function instanceof Mode && ((Mode) function).reverseOpt().isEmpty();
        return open && RowOrders.isOrderable(value) ? new Mode(value, true) : function;
    }

    private static AggregateFunction extreme(Expression value, Expression by, boolean greatest) {
        return greatest ? new MaxBy(value, by) : new MinBy(value, by);
    }

    /** A list of the group's rows, each as what it goes by and the value; `nulls`: with those whose value is null. */
    AggregateFunction listing(Expression value, boolean nulls) {
        List<Expression> parts = new ArrayList<>(order);
        parts.add(value);
        return new CollectList(unlessNull(nulls ? null : value, parts));
    }

    /** The values of what `listing` gives, in the order of the rows. */
    Expression values(Expression listed, boolean nulls) {
        Expression sorted = new SortArray(listed, Literal.create(!descending, DataTypes.BooleanType));
        StructField[] fields = ((StructType) ((ArrayType) listed.dataType()).elementType()).fields();
        int place = fields.length - 1;
        return new GetArrayStructFields(sorted, fields[place], place, fields.length, nulls);
    }

    private ListAgg inOrder(ListAgg function) {
        List<SortOrder> found = new ArrayList<>(CollectionConverters.asJava(function.orderExpressions()));
        SortDirection direction = descending ? Descending$.MODULE$ : Ascending$.MODULE$;
        for (Expression each : order) {
            found.add(SortOrder$.MODULE$.apply(each, direction, TieBreaking.seq(List.of())));
        }
        return function.copy(
                function.child(),
                function.delimiter(),
                TieBreaking.seq(found),
                function.mutableAggBufferOffset(),
                function.inputAggBufferOffset());
    }

    private Expression row(Expression counted, List<Expression> before) {
        List<Expression> parts = new ArrayList<>(before);
        parts.addAll(order);
        return unlessNull(counted, parts);
    }

    /** A struct; null, so that the row does not count, where `counted` is. Null itself: all rows count. */
    private static Expression unlessNull(Expression counted, List<Expression> parts) {
        Expression row = CreateStruct$.MODULE$.apply(TieBreaking.seq(parts));
        return counted == null ? row : new If(new IsNotNull(counted), row, Literal.create(null, row.dataType()));
    }

    private static AggregateExpression with(AggregateExpression expression, AggregateFunction function) {
        return expression.copy(
                function, expression.mode(), expression.isDistinct(), expression.filter(), expression.resultId());
    }
}
