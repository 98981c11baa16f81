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
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.CreateStruct$;
import org.apache.spark.sql.catalyst.expressions.Descending$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayStructFields;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.RowOrdering$;
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
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import scala.Function1;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

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
    private TiedFunctions(List<Expression> order, boolean descending) {
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
        TiedFunctions functions = isOfDistincts(aggregate) ? null : over(aggregate);
        if (functions == null) {
            return aggregate;
        }
        List<NamedExpression> found = new ArrayList<>();
        boolean changed = false;
        for (NamedExpression each : CollectionConverters.asJava(aggregate.aggregateExpressions())) {
            NamedExpression settled = (NamedExpression) ((Expression) each).transformUp(functions.new Settle());
            changed |= settled != each;
            found.add(settled);
        }
        return changed
                ? aggregate.copy(
                        aggregate.groupingExpressions(), TieBreaking.seq(found), aggregate.child(), aggregate.hint())
                : aggregate;
    }

    /** Null: its groups' rows have no order that can be written as a struct, or no columns. */
    private static TiedFunctions over(Aggregate aggregate) {
        List<Expression> order = new ArrayList<>();
        boolean descending = false;
        LogicalPlan rows = aggregate.child();
        Sort sort = sortBelow(rows);
        if (sort != null) {
            List<SortOrder> given = CollectionConverters.asJava(sort.order());
            descending = !given.get(0).isAscending();
            for (SortOrder each : given) {
                boolean alike = each.isAscending() != descending
                        && each.nullOrdering().equals(each.direction().defaultNullOrdering())
                        && each.child().references().subsetOf(rows.outputSet());
                if (!alike) {
                    return null;
                }
                order.add(each.child());
            }
        }
        List<Expression> known = new ArrayList<>(CollectionConverters.asJava(aggregate.groupingExpressions()));
        known.addAll(order);
        order.addAll(TieBreaking.columnsBesides(rows, known));
        return order.isEmpty() ? null : new TiedFunctions(order, descending);
    }

    private static Sort sortBelow(LogicalPlan rows) {
        LogicalPlan below = rows;
        while (below instanceof Filter || below instanceof Project) {
            below = below.children().head();
        }
        return below instanceof Sort && ((Sort) below).global() ? (Sort) below : null;
    }

    /** Whether Spark made it of an aggregate of several DISTINCT columns: its `first` has one value to choose from. */
    private static boolean isOfDistincts(Aggregate aggregate) {
        if (!(aggregate.child() instanceof Aggregate)) {
            return false;
        }
        for (Attribute each : CollectionConverters.asJava(aggregate.child().output())) {
            if (each.name().equals("gid")) {
                return true;
            }
        }
        return false;
    }

    private final class Settle extends AbstractPartialFunction<Expression, Expression> {
        @Override
        public boolean isDefinedAt(Expression expression) {
            return expression instanceof AggregateExpression
                    && isTied(((AggregateExpression) expression).aggregateFunction());
        }

        @Override
        public <A1 extends Expression, B1> B1 applyOrElse(A1 expression, Function1<A1, B1> otherwise) {
            if (!isDefinedAt(expression)) {
                return otherwise.apply(expression);
            }
            @SuppressWarnings("unchecked") // both are expressions
            B1 found = (B1) chosen((AggregateExpression) expression);
            return found;
        }
    }

    private Expression chosen(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        Expression value = function.children().head();
        if (expression.isDistinct()) {
            return ofDistinct(expression, function, value);
        }
        if (function instanceof First) {
            return firstOf(expression, value, ((First) function).ignoreNulls(), descending);
        }
        if (function instanceof Last) {
            return firstOf(expression, value, ((Last) function).ignoreNulls(), !descending);
        }
        if (function instanceof MaxBy) {
            Expression by = ((MaxBy) function).orderingExpr();
            return with(expression, new MaxBy(value, row(List.of(by))), unlessNull(expression, by));
        }
        if (function instanceof MinBy) {
            Expression by = ((MinBy) function).orderingExpr();
            return with(expression, new MinBy(value, row(List.of(by))), unlessNull(expression, by));
        }
        if (function instanceof ListAgg) {
            return with(expression, inOrder((ListAgg) function), expression.filter());
        }
        if (!isOrderable(value)) {
            return expression;
        }
        if (function instanceof Mode) {
            boolean settled = ((Mode) function).reverseOpt().isDefined();
            return settled ? expression : with(expression, new Mode(value, true), expression.filter());
        }
        return function instanceof CollectSet ? new SortArray(expression) : listed(expression, value);
    }

    private Expression firstOf(
            AggregateExpression expression, Expression value, boolean ignoreNulls, boolean greatest) {
        AggregateFunction found =
                greatest ? new MaxBy(value, row(List.of())) : new MinBy(value, row(List.of()));
        return with(expression, found, ignoreNulls ? unlessNull(expression, value) : expression.filter());
    }

    private static Expression ofDistinct(AggregateExpression expression, AggregateFunction function, Expression value) {
        boolean listed = function instanceof CollectList || function instanceof CollectSet;
        return listed && isOrderable(value) ? new SortArray(expression) : expression;
    }

    /** The values of the group's rows, in their order. */
    private Expression listed(AggregateExpression expression, Expression value) {
        List<Expression> parts = new ArrayList<>(order);
        parts.add(value);
        CreateNamedStruct rows = CreateStruct$.MODULE$.apply(TieBreaking.seq(parts));
        StructField[] fields = rows.dataType().fields();
        int place = parts.size() - 1;
        Expression unsorted = with(expression, new CollectList(rows), unlessNull(expression, value));
        Expression sorted = new SortArray(unsorted, Literal.create(!descending, DataTypes.BooleanType));
        return new GetArrayStructFields(sorted, fields[place], place, fields.length, false);
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

    private Expression row(List<Expression> before) {
        List<Expression> parts = new ArrayList<>(before);
        parts.addAll(order);
        return CreateStruct$.MODULE$.apply(TieBreaking.seq(parts));
    }

    private static Option<Expression> unlessNull(AggregateExpression expression, Expression value) {
        Expression there = new IsNotNull(value);
        Option<Expression> filter = expression.filter();
        return Option.apply(filter.isDefined() ? new And(filter.get(), there) : there);
    }

    private static AggregateExpression with(
            AggregateExpression expression, AggregateFunction function, Option<Expression> filter) {
        return expression.copy(function, expression.mode(), expression.isDistinct(), filter, expression.resultId());
    }

    private static boolean isOrderable(Expression value) {
        return RowOrdering$.MODULE$.isOrderable(value.dataType());
    }
}
