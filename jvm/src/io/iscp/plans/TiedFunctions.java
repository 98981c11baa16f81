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
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.RowOrdering$;
import org.apache.spark.sql.catalyst.expressions.SortArray;
import org.apache.spark.sql.catalyst.expressions.SortDirection;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SortOrder$;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
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
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import scala.Option;
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
    private TiedFunctions(List<Expression> order, boolean descending) {
        this.order = order;
        this.descending = descending;
    }

    static boolean isTied(Expression function) {
        return isChoice(function)
                || function instanceof CollectList
                || function instanceof CollectSet
                || function instanceof ListAgg;
    }

    private static boolean isChoice(Expression function) {
        return function instanceof First
                || function instanceof Last
                || function instanceof MaxBy
                || function instanceof MinBy
                || function instanceof Mode;
    }

    static LogicalPlan settled(Aggregate aggregate) {
        TiedFunctions functions = isOfDistincts(aggregate) ? null : over(aggregate);
        return functions == null
                ? aggregate
                : aggregate.transformExpressionsUp(new Rewriting<>(functions::settledAlone));
    }

    private Expression settledAlone(Expression expression) {
        boolean tied = expression instanceof AggregateExpression
                && isTied(((AggregateExpression) expression).aggregateFunction());
        return tied ? chosen((AggregateExpression) expression) : expression;
    }

    /**
     * A function of a window over a range of rows, whose frame has all rows that tie with its last one. What makes lists is
     * left as it is.
     */
    static NamedExpression inRange(NamedExpression named, Window window) {
        WindowExpression function = TieBreaking.windowOf(named);
        boolean choice = function != null
                && function.windowFunction() instanceof AggregateExpression
                && isChoice(((AggregateExpression) function.windowFunction()).aggregateFunction());
        if (!choice || window.orderSpec().isEmpty()) {
            return named;
        }
        TiedFunctions functions = over(
                CollectionConverters.asJava(window.orderSpec()),
                window.child(),
                CollectionConverters.asJava(window.partitionSpec()));
        if (functions == null) {
            return named;
        }
        Expression chosen = functions.chosen((AggregateExpression) function.windowFunction());
        return TieBreaking.of(named, function.copy(chosen, function.windowSpec()));
    }

    private static TiedFunctions over(Aggregate aggregate) {
        Sort sort = TieBreaking.sortBelow(aggregate.child(), true);
        List<SortOrder> given = sort == null ? List.of() : CollectionConverters.asJava(sort.order());
        return over(given, aggregate.child(), CollectionConverters.asJava(aggregate.groupingExpressions()));
    }

    /**
     * Null: the rows have no order that can be written as a struct, or no columns. `same`: in which those of a group do
     * not differ.
     */
    private static TiedFunctions over(List<SortOrder> given, LogicalPlan rows, List<Expression> same) {
        List<Expression> order = new ArrayList<>();
        boolean descending = !given.isEmpty() && !given.get(0).isAscending();
        for (SortOrder each : given) {
            boolean alike = each.isAscending() != descending
                    && each.nullOrdering().equals(each.direction().defaultNullOrdering())
                    && each.child().references().subsetOf(rows.outputSet());
            if (!alike) {
                return null;
            }
            order.add(each.child());
        }
        List<Expression> known = new ArrayList<>(same);
        known.addAll(order);
        order.addAll(TieBreaking.columnsBesides(rows, known));
        return order.isEmpty() ? null : new TiedFunctions(order, descending);
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

    private Expression chosen(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        Expression value = function.children().head();
        if (expression.isDistinct()) {
            return isOrderable(value) ? new TiedFunctions(List.of(value), false).ofDistinct(expression) : expression;
        }
        if (function instanceof CollectSet && isOrderable(value)) {
            return new SortArray(expression);
        }
        return function instanceof CollectList && isOrderable(value)
                ? listed(expression, value)
                : with(expression, chosen(function, value), expression.filter());
    }

    private Expression ofDistinct(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        boolean listed = function instanceof CollectList || function instanceof CollectSet;
        boolean ordered = function instanceof ListAgg && !((ListAgg) function).orderExpressions().isEmpty();
        if (listed || ordered) {
            return listed ? new SortArray(expression) : expression;
        }
        return with(expression, chosen(function, function.children().head()), expression.filter());
    }

    private AggregateFunction chosen(AggregateFunction function, Expression value) {
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
        boolean open = function instanceof Mode && ((Mode) function).reverseOpt().isEmpty() && isOrderable(value);
        return open ? new Mode(value, true) : function;
    }

    private static AggregateFunction extreme(Expression value, Expression by, boolean greatest) {
        return greatest ? new MaxBy(value, by) : new MinBy(value, by);
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

    /** Null, so that the row does not count, where `counted` is. Null itself: all rows count. */
    private Expression row(Expression counted, List<Expression> before) {
        List<Expression> parts = new ArrayList<>(before);
        parts.addAll(order);
        Expression row = CreateStruct$.MODULE$.apply(TieBreaking.seq(parts));
        return counted == null ? row : new If(new IsNotNull(counted), row, Literal.create(null, row.dataType()));
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
