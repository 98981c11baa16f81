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
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CumeDist;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NthValue;
import org.apache.spark.sql.catalyst.expressions.RankLike;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.RowNumber;
import org.apache.spark.sql.catalyst.expressions.RowOrdering$;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SortOrder$;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.UnboundedFollowing$;
import org.apache.spark.sql.catalyst.expressions.UnboundedPreceding$;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowSpecDefinition;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
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
        return isLimit(child) ? plan : plan.withNewChildren(seq(List.of(ordered(child))));
    }

    private static LogicalPlan ordered(LogicalPlan plan) {
        Sort sort = sortBelow(plan, false);
        if (sort != null && plan instanceof Project) {
            return plan.withNewChildren(seq(List.of(ordered(((Project) plan).child()))));
        }
        LogicalPlan child = sort == null ? plan : sort.child();
        List<SortOrder> given = sort == null ? List.of() : CollectionConverters.asJava(sort.order());
        List<SortOrder> order = extended(given, child, List.of());
        return order.size() == given.size() ? plan : new Sort(seq(order), true, child, Option.empty());
    }

    /** The sort whose order the rows have, seen through projections, and filters if so; null: there is none. */
    static Sort sortBelow(LogicalPlan plan, boolean filters) {
        LogicalPlan below = plan;
        while (below instanceof Project || (filters && below instanceof Filter)) {
            below = below.children().head();
        }
        return below instanceof Sort && ((Sort) below).global() ? (Sort) below : null;
    }

    // --- windows ------------------------------------------------------------------------------------------------

    private static LogicalPlan window(Window window) {
        List<NamedExpression> tied = new ArrayList<>();
        List<NamedExpression> others = new ArrayList<>();
        boolean changed = false;
        for (NamedExpression each : CollectionConverters.asJava(window.windowExpressions())) {
            if (dependsOnOrder(each)) {
                tied.add(each);
                continue;
            }
            NamedExpression settled = TiedFunctions.inRange(each, window);
            changed |= settled != each;
            others.add(settled);
        }
        if (tied.isEmpty()) {
            return changed ? withFunctions(window, others) : window;
        }
        List<SortOrder> given = CollectionConverters.asJava(window.orderSpec());
        LogicalPlan child = window.child();
        Sort sort = given.isEmpty() && tied.stream().allMatch(TieBreaking::isRowNumber) ? sortBelow(child, false) : null;
        if (sort != null) {
            // LIMIT of a correlated subquery, of which Spark loses the order where that is not of columns selected.
            given = CollectionConverters.asJava(sort.order());
            child = unsorted(child);
        }
        List<SortOrder> order = extended(given, child, CollectionConverters.asJava(window.partitionSpec()));
        if (order.isEmpty()) { // all rows of a partition are alike, and Spark has them numbered by an order alone
            order = List.of(ascending(Literal.create(0, DataTypes.IntegerType)));
        }
        if (!others.isEmpty()) {
            child = withFunctions((Window) window.withNewChildren(seq(List.of(child))), others);
        }
        List<NamedExpression> settled = new ArrayList<>();
        for (NamedExpression each : tied) {
            settled.add(byRows(each, order));
        }
        Window found = window.copy(seq(settled), window.partitionSpec(), seq(order), child, window.hint());
        return new Project(seq(new ArrayList<NamedExpression>(CollectionConverters.asJava(window.output()))), found);
    }

    private static Window withFunctions(Window window, List<NamedExpression> functions) {
        return window.copy(
                seq(functions), window.partitionSpec(), window.orderSpec(), window.child(), window.hint());
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
        boolean whole = frame.lower() instanceof UnboundedPreceding$ && frame.upper() instanceof UnboundedFollowing$;
        if (TiedFunctions.isTied(function) || function instanceof NthValue) {
            return whole || frame.frameType() instanceof RowFrame$ || isFirstOfRange(function, frame);
        }
        return frame.frameType() instanceof RowFrame$ && !whole;
    }

    /** Whether it is the first row, or its like, of a range, which is that of the rows before as well. */
    private static boolean isFirstOfRange(Expression function, SpecifiedWindowFrame frame) {
        boolean first = function instanceof First && !((First) function).ignoreNulls();
        return first && frame.lower() instanceof UnboundedPreceding$ && !frame.isValueBound();
    }

    private static boolean isRowNumber(NamedExpression named) {
        return functionOf(windowOf(named)) instanceof RowNumber;
    }

    private static Expression functionOf(WindowExpression window) {
        Expression function = window.windowFunction();
        return function instanceof AggregateExpression
                ? ((AggregateExpression) function).aggregateFunction()
                : function;
    }

    private static NamedExpression byRows(NamedExpression named, List<SortOrder> order) {
        SpecifiedWindowFrame frame = frameOf(windowOf(named));
        return underOrder(named, order, frame.copy(RowFrame$.MODULE$, frame.lower(), frame.upper()));
    }

    static NamedExpression underOrder(NamedExpression named, List<SortOrder> order, WindowFrame frame) {
        WindowExpression window = windowOf(named);
        WindowSpecDefinition spec = window.windowSpec();
        return of(named, window.copy(window.windowFunction(), spec.copy(spec.partitionSpec(), seq(order), frame)));
    }

    /** The column, as what `window` gives. */
    static NamedExpression of(NamedExpression named, WindowExpression window) {
        return (NamedExpression) ((Alias) named).withNewChildren(seq(List.of(window)));
    }

    /** Projections without the sort below them, which pass the columns on that it goes by. */
    private static LogicalPlan unsorted(LogicalPlan plan) {
        if (plan instanceof Sort) {
            return ((Sort) plan).child();
        }
        Project project = (Project) plan;
        LogicalPlan child = unsorted(project.child());
        List<NamedExpression> columns = new ArrayList<>(CollectionConverters.asJava(project.projectList()));
        Set<Long> there = ids(CollectionConverters.asJava(project.output()));
        for (SortOrder each : CollectionConverters.asJava(sortBelow(plan, false).order())) {
            for (Attribute column : CollectionConverters.asJava(each.references().toSeq())) {
                if (there.add(column.exprId().id())) {
                    columns.add(column);
                }
            }
        }
        return new Project(seq(columns), child);
    }

    // --- orders -------------------------------------------------------------------------------------------------

    /** The order, and then by each other column of the rows that can be ordered; `same`: in which they do not differ. */
    private static List<SortOrder> extended(
            List<SortOrder> order, LogicalPlan rows, List<? extends Expression> same) {
        List<Expression> known = new ArrayList<>(same);
        for (SortOrder each : order) {
            known.add(each.child());
        }
        List<SortOrder> found = new ArrayList<>(order);
        for (Attribute each : columnsBesides(rows, known)) {
            found.add(ascending(each));
        }
        return found;
    }

    static SortOrder ascending(Expression value) {
        return SortOrder$.MODULE$.apply(value, Ascending$.MODULE$, seq(List.of()));
    }

    /** Columns of the rows that can be ordered, without these. */
    static List<Attribute> columnsBesides(LogicalPlan rows, List<? extends Expression> known) {
        Set<Long> there = ids(known);
        List<Attribute> found = new ArrayList<>();
        for (Attribute each : CollectionConverters.asJava(rows.output())) {
            if (there.add(each.exprId().id()) && RowOrdering$.MODULE$.isOrderable(each.dataType())) {
                found.add(each);
            }
        }
        return found;
    }

    private static Set<Long> ids(List<? extends Expression> expressions) {
        Set<Long> found = new HashSet<>();
        for (Expression each : expressions) {
            if (each instanceof Attribute) {
                found.add(((Attribute) each).exprId().id());
            }
        }
        return found;
    }

    static <T> Seq<T> seq(List<? extends T> items) {
        return CollectionConverters.<T>asScala(new ArrayList<T>(items)).toSeq();
    }
}
