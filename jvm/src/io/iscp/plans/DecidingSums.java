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
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.Add;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CaseWhen;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.KnownFloatingPointNormalized;
import org.apache.spark.sql.catalyst.expressions.Lag;
import org.apache.spark.sql.catalyst.expressions.Lead;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.UnaryMinus;
import org.apache.spark.sql.catalyst.expressions.UnaryPositive;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Offset;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Has sums of doubles that something is decided by be exact: what is decided does not follow from the order of the rows.
 *
 * <p>From the result down it is known of each operator which of its columns have to be the same in each run: those by
 * which it or what is above filters, joins, groups, orders or compares, and those by whose values rows that were written
 * are found again. Where such a column follows from functions that add doubles, these are exact ones. Others stay: what
 * they give is near to what it was in each run, and nothing else depends on it.
 */
public final class DecidingSums {
    /** Columns, by their ids, that have to be the same in each run. */
    private final Set<Long> deciding = new HashSet<>();

    private final Set<String> unsettled;

    private DecidingSums(Set<String> unsettled, Seq<Attribute> found) {
        this.unsettled = unsettled;
        decide(found);
    }

    /** The plan, and those of subqueries in it. `found` are columns by whose values rows are found again. */
    public static LogicalPlan settled(LogicalPlan plan, Seq<Attribute> found) {
        return new DecidingSums(new TreeSet<>(), found).top(plan);
    }

    /**
     * The functions that something is decided by, or that rows are found again by, though they give another value in each
     * run, separated by commas.
     */
    public static String unsettled(LogicalPlan plan, Seq<Attribute> found) {
        Set<String> functions = new TreeSet<>();
        new DecidingSums(functions, found).top(plan);
        return String.join(", ", functions);
    }

    // --- operators ------------------------------------------------------------------------------------------------

    /** In which order rows of a table are decides nothing. */
    private LogicalPlan top(LogicalPlan plan) {
        if (plan instanceof Project) {
            Project project = (Project) plan;
            return new Project(named(project.projectList()), top(project.child()));
        }
        return plan instanceof Sort ? plan.withNewChildren(seq(top(((Sort) plan).child()))) : below(plan);
    }

    private LogicalPlan below(LogicalPlan plan) {
        if (plan instanceof Project) {
            Project project = (Project) plan;
            return new Project(named(project.projectList()), below(project.child()));
        }
        if (plan instanceof Aggregate) {
            Aggregate aggregate = (Aggregate) plan;
            Seq<Expression> groups = all(aggregate.groupingExpressions(), true);
            Seq<NamedExpression> columns = named(aggregate.aggregateExpressions());
            return aggregate.copy(groups, columns, below(aggregate.child()), aggregate.hint());
        }
        if (plan instanceof Window) {
            Window window = (Window) plan;
            Seq<NamedExpression> columns = named(window.windowExpressions());
            all(window.partitionSpec(), true);
            all(window.orderSpec(), true);
            return TieBreaking.withColumns(
                    window, CollectionConverters.asJava(columns), window.orderSpec(), below(window.child()));
        }
        if (plan instanceof Union) {
            return union((Union) plan);
        }
        if (plan instanceof Expand) {
            expand((Expand) plan);
        } else if (!passesOn(plan)) {
            for (LogicalPlan each : CollectionConverters.asJava(plan.children())) {
                decide(each.output());
            }
        }
        LogicalPlan changed = plan instanceof Expand ? plan : plan.mapExpressions(function(true));
        List<LogicalPlan> inputs = new ArrayList<>();
        for (LogicalPlan each : CollectionConverters.asJava(changed.children())) {
            inputs.add(below(each));
        }
        return changed.withNewChildren(TieBreaking.seq(inputs));
    }

    /** Whether its columns are those of its inputs, under their ids, and its expressions decide. */
    private static boolean passesOn(LogicalPlan plan) {
        return plan instanceof Filter
                || plan instanceof Join
                || plan instanceof Sort
                || plan instanceof GlobalLimit
                || plan instanceof LocalLimit
                || plan instanceof Offset;
    }

    private LogicalPlan union(Union union) {
        List<Attribute> columns = CollectionConverters.asJava(union.output());
        List<LogicalPlan> inputs = new ArrayList<>();
        for (LogicalPlan each : CollectionConverters.asJava(union.children())) {
            for (int place = 0; place < columns.size(); place++) {
                if (isDeciding(columns.get(place))) {
                    decide(each.output().apply(place));
                }
            }
            inputs.add(below(each));
        }
        return union.withNewChildren(TieBreaking.seq(inputs));
    }

    private void expand(Expand expand) {
        List<Attribute> columns = CollectionConverters.asJava(expand.output());
        for (Seq<Expression> row : CollectionConverters.asJava(expand.projections())) {
            for (int place = 0; place < columns.size(); place++) {
                settled(row.apply(place), isDeciding(columns.get(place)));
            }
        }
    }

    private boolean isDeciding(NamedExpression column) {
        return deciding.contains(column.exprId().id());
    }

    private void decide(NamedExpression column) {
        deciding.add(column.exprId().id());
    }

    private void decide(Seq<Attribute> columns) {
        CollectionConverters.asJava(columns).forEach(this::decide);
    }

    // --- expressions ----------------------------------------------------------------------------------------------

    private Seq<NamedExpression> named(Seq<NamedExpression> columns) {
        List<NamedExpression> found = new ArrayList<>();
        for (NamedExpression each : CollectionConverters.asJava(columns)) {
            found.add((NamedExpression) settled((Expression) each, isDeciding(each)));
        }
        return TieBreaking.seq(found);
    }

    private <T extends Expression> Seq<Expression> all(Seq<T> expressions, boolean decides) {
        List<Expression> found = new ArrayList<>();
        for (Expression each : CollectionConverters.asJava(expressions)) {
            found.add(settled(each, decides));
        }
        return TieBreaking.seq(found);
    }

    private scala.Function1<Expression, Expression> function(boolean decides) {
        return new Rewriting<Expression>(each -> settled(each, decides));
    }

    /** `decides`: it has to be the same in each run. */
    private Expression settled(Expression expression, boolean decides) {
        if (expression instanceof Attribute) {
            if (decides) {
                decide((Attribute) expression);
            }
            return expression;
        }
        if (expression instanceof SubqueryExpression) {
            return subquery((SubqueryExpression) expression, decides);
        }
        if (expression instanceof AggregateExpression) {
            return aggregate((AggregateExpression) expression, decides);
        }
        if (expression instanceof WindowExpression) {
            WindowExpression window = (WindowExpression) expression;
            return window.copy(settled(window.windowFunction(), decides), window.windowSpec());
        }
        List<Expression> found = new ArrayList<>();
        List<Expression> children = CollectionConverters.asJava(expression.children());
        for (int place = 0; place < children.size(); place++) {
            found.add(settled(children.get(place), decides || !follows(expression, place)));
        }
        return children.isEmpty() ? expression : expression.withNewChildren(TieBreaking.seq(found));
    }

    private Expression subquery(SubqueryExpression expression, boolean decides) {
        all(expression.children(), true);
        LogicalPlan plan = expression.plan();
        if (decides) {
            decide(plan.output());
        }
        return (Expression) expression.withNewPlan(below(plan));
    }

    private Expression aggregate(AggregateExpression expression, boolean decides) {
        AggregateFunction function = expression.aggregateFunction();
        boolean near = !decides && !expression.isDistinct() && ExactFunctions.follows(function);
        all(function.children(), !near);
        all(expression.filter().toList(), true);
        if (decides && ExactFunctions.isUnsettled(function)) {
            unsettled.add(function.prettyName());
        }
        return decides ? ExactFunctions.settled(expression) : expression;
    }

    /** Whether the value goes as that of its argument at this place does: near values give near ones. */
    private static boolean follows(Expression value, int place) {
        if (value instanceof If) {
            return place > 0;
        }
        if (value instanceof CaseWhen) {
            boolean otherwise = ((CaseWhen) value).elseValue().isDefined()
                    && place == value.children().size() - 1;
            return otherwise || place % 2 == 1;
        }
        if (value instanceof Lag || value instanceof Lead) {
            return place != 1;
        }
        if (value instanceof Cast) {
            return isDouble(value.dataType()) && isDouble(((Cast) value).child().dataType());
        }
        return value instanceof Alias
                || value instanceof Add
                || value instanceof Subtract
                || value instanceof Multiply
                || value instanceof Divide
                || value instanceof UnaryMinus
                || value instanceof UnaryPositive
                || value instanceof Abs
                || value instanceof Coalesce
                || value instanceof NormalizeNaNAndZero
                || value instanceof KnownFloatingPointNormalized;
    }

    static boolean isDouble(DataType type) {
        return type.equals(DataTypes.DoubleType) || type.equals(DataTypes.FloatType);
    }

    private static Seq<LogicalPlan> seq(LogicalPlan plan) {
        return TieBreaking.seq(List.of(plan));
    }
}
