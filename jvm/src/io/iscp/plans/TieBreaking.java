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
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.CumeDist;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NthValue;
import org.apache.spark.sql.catalyst.expressions.RankLike;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.RowNumber;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.UnboundedFollowing$;
import org.apache.spark.sql.catalyst.expressions.UnboundedPreceding$;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowSpecDefinition;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Offset;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Has what depends on the order of rows not depend on how they come: rows that tie are ordered by all of their columns.
 *
 * <p>A refresh takes away what an operator gave for the old rows, computed again, and adds what it gives for the new
 * ones. Where it may choose among rows that tie, both have to be the same choice, or rows stay that nothing gave.
 */
public final class TieBreaking {
    private TieBreaking() {}

    /** The plan, and those of subqueries in it, with each choice among rows that tie settled. */
    public static LogicalPlan settled(LogicalPlan plan) {
        return plan.transformUpWithSubqueries(new Rewriting<>(TieBreaking::settledAlone));
    }

    private static LogicalPlan settledAlone(LogicalPlan plan) {
        if (plan instanceof Window) {
            return window((Window) plan);
        }
        if (plan instanceof Aggregate) {
            return TiedFunctions.settled((Aggregate) plan);
        }
        return isLimit(plan) ? limit(plan) : plan;
    }

    // --- limits -------------------------------------------------------------------------------------------------

    private static boolean isLimit(LogicalPlan plan) {
        return plan instanceof GlobalLimit || plan instanceof LocalLimit || plan instanceof Offset;
    }

    private static LogicalPlan limit(LogicalPlan plan) {
        LogicalPlan child = plan.children().head();
        if (child instanceof Project && isOrdered(child)) {
            // Above the limit: which rows it takes may follow from columns that the projection has not.
            LogicalPlan taken = limit(plan.withNewChildren(seq(List.of(((Project) child).child()))));
            return child.withNewChildren(seq(List.of(taken)));
        }
        return isLimit(child) ? plan : plan.withNewChildren(seq(List.of(ordered(child))));
    }

    private static boolean isOrdered(LogicalPlan plan) {
        LogicalPlan below = plan;
        while (below instanceof Project) {
            below = ((Project) below).child();
        }
        return isLimit(below) || RowOrders.sortBelow(below, false) != null;
    }

    private static LogicalPlan ordered(LogicalPlan plan) {
        Sort sort = RowOrders.sortBelow(plan, false);
        LogicalPlan child = sort == null ? plan : sort.child();
        List<SortOrder> given = sort == null ? List.of() : CollectionConverters.asJava(sort.order());
        List<SortOrder> order = RowOrders.extended(given, child, List.of());
        return order.size() == given.size() ? plan : new Sort(seq(order), true, child, Option.empty());
    }

    // --- windows ------------------------------------------------------------------------------------------------

    private static LogicalPlan window(Window window) {
        List<NamedExpression> byRows = new ArrayList<>();
        List<NamedExpression> byRange = new ArrayList<>();
        List<NamedExpression> others = new ArrayList<>();
        for (NamedExpression each : CollectionConverters.asJava(window.windowExpressions())) {
            boolean ranged = RangedTies.concern(each, window);
            (ranged ? byRange : dependsOnOrder(each) ? byRows : others).add(each);
        }
        if (byRows.isEmpty() && byRange.isEmpty()) {
            return window;
        }
        LogicalPlan rows = window.child();
        List<SortOrder> given = CollectionConverters.asJava(window.orderSpec());
        boolean numbered = given.isEmpty() && byRows.stream().allMatch(TieBreaking::isRowNumber);
        Sort sort = numbered ? RowOrders.sortBelow(rows, false) : null;
        if (sort != null) {
            // LIMIT of a correlated subquery, of which Spark loses the order where that is not of columns selected.
            given = CollectionConverters.asJava(sort.order());
            rows = RowOrders.unsorted(rows);
        }
        List<SortOrder> order =
                RowOrders.extended(given, rows, CollectionConverters.asJava(window.partitionSpec()));
        if (order.isEmpty()) { // all rows of a partition are alike, and Spark has them numbered by an order alone
            order = List.of(RowOrders.ascending(Literal.create(0, DataTypes.IntegerType)));
        }
        rows = others.isEmpty() ? rows : withColumns(window, others, window.orderSpec(), rows);
        rows = byRange.isEmpty() ? rows : RangedTies.settled(byRange, window, order, rows);
        rows = byRows.isEmpty() ? rows : withColumns(window, byRows(byRows, order), seq(order), rows);
        return new Project(seq(new ArrayList<NamedExpression>(CollectionConverters.asJava(window.output()))), rows);
    }

    /** The rows, with these columns of the window more. */
    static Window withColumns(Window window, List<NamedExpression> columns, Seq<SortOrder> order, LogicalPlan rows) {
        return window.copy(seq(columns), window.partitionSpec(), order, rows, window.hint());
    }

    /** The function that a column of a window is; null: Spark knows what it gives, and has that in its place. */
    static WindowExpression windowOf(NamedExpression named) {
        Expression found = ((Alias) named).child();
        return found instanceof WindowExpression ? (WindowExpression) found : null;
    }

    static SpecifiedWindowFrame frameOf(WindowExpression window) {
        return (SpecifiedWindowFrame) window.windowSpec().frameSpecification();
    }

    /** Whether it depends on the order of rows in frames of rows. */
    private static boolean dependsOnOrder(NamedExpression named) {
        WindowExpression window = windowOf(named);
        if (window == null) {
            return false;
        }
        Expression function = functionOf(window);
        if (function instanceof RankLike || function instanceof CumeDist) {
            return false; // peers have the same
        }
        SpecifiedWindowFrame frame = frameOf(window);
        boolean whole = isWhole(frame);
        if (TiedFunctions.isTied(function) || function instanceof NthValue) {
            return whole || frame.frameType() instanceof RowFrame$ || isFirstOfRange(function, frame);
        }
        return frame.frameType() instanceof RowFrame$ && !whole;
    }

    static boolean isWhole(SpecifiedWindowFrame frame) {
        return frame.lower() instanceof UnboundedPreceding$ && frame.upper() instanceof UnboundedFollowing$;
    }

    /** Whether it is the first row, or its like, of a range, which is that of the rows before as well. */
    static boolean isFirstOfRange(Expression function, SpecifiedWindowFrame frame) {
        boolean first = function instanceof First && !((First) function).ignoreNulls();
        return first && frame.lower() instanceof UnboundedPreceding$ && !frame.isValueBound();
    }

    private static boolean isRowNumber(NamedExpression named) {
        return functionOf(windowOf(named)) instanceof RowNumber;
    }

    static Expression functionOf(WindowExpression window) {
        Expression function = window.windowFunction();
        return function instanceof AggregateExpression
                ? ((AggregateExpression) function).aggregateFunction()
                : function;
    }

    private static List<NamedExpression> byRows(List<NamedExpression> columns, List<SortOrder> order) {
        List<NamedExpression> found = new ArrayList<>();
        for (NamedExpression each : columns) {
            SpecifiedWindowFrame frame = frameOf(windowOf(each));
            found.add(underOrder(each, order, frame.copy(RowFrame$.MODULE$, frame.lower(), frame.upper())));
        }
        return found;
    }

    static NamedExpression underOrder(NamedExpression named, List<SortOrder> order, WindowFrame frame) {
        WindowExpression window = windowOf(named);
        WindowSpecDefinition spec = window.windowSpec();
        return as(named, window.copy(window.windowFunction(), spec.copy(spec.partitionSpec(), seq(order), frame)));
    }

    /** The column, as what `value` gives. */
    static NamedExpression as(NamedExpression named, Expression value) {
        return (NamedExpression) ((Alias) named).withNewChildren(seq(List.of(value)));
    }

    static <T> Seq<T> seq(List<? extends T> items) {
        return CollectionConverters.<T>asScala(new ArrayList<T>(items)).toSeq();
    }
}
