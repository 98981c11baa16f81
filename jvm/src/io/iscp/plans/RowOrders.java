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
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.CurrentRow$;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.RowNumber;
import org.apache.spark.sql.catalyst.expressions.RowOrdering$;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SortOrder$;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.UnboundedPreceding$;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowSpecDefinition;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Orders of a plan's rows: the one that they have, and by all of their columns. */
final class RowOrders {
    private static final String NUMBER = "number";

    private RowOrders() {}

    /** The sort whose order the rows have, seen through projections, and filters if so; null: there is none. */
    static Sort sortBelow(LogicalPlan plan, boolean filters) {
        LogicalPlan below = plan;
        while (below instanceof Project || (filters && below instanceof Filter)) {
            below = below.children().head();
        }
        return below instanceof Sort && ((Sort) below).global() ? (Sort) below : null;
    }

    /** Projections, and filters, without the sort below them, which pass the columns on that it goes by. */
    static LogicalPlan unsorted(LogicalPlan plan) {
        if (plan instanceof Sort) {
            return ((Sort) plan).child();
        }
        if (plan instanceof Filter) {
            return plan.withNewChildren(TieBreaking.seq(List.of(unsorted(plan.children().head()))));
        }
        Project project = (Project) plan;
        LogicalPlan child = unsorted(project.child());
        List<NamedExpression> columns = new ArrayList<>(CollectionConverters.asJava(project.projectList()));
        Set<Long> there = ids(CollectionConverters.asJava(project.output()));
        for (SortOrder each : CollectionConverters.asJava(sortBelow(plan, true).order())) {
            for (Attribute column : CollectionConverters.asJava(each.references().toSeq())) {
                if (there.add(column.exprId().id())) {
                    columns.add(column);
                }
            }
        }
        return new Project(TieBreaking.seq(columns), child);
    }

    /**
     * The order, then by each other column of the rows that can be ordered, and by how values look that are equal.
     * `same`: in which they are equal.
     */
    static List<SortOrder> extended(
            List<SortOrder> order, LogicalPlan rows, List<? extends Expression> same) {
        List<Expression> known = new ArrayList<>(same);
        for (SortOrder each : order) {
            known.add(each.child());
        }
        Set<Long> there = ids(known);
        List<SortOrder> found = new ArrayList<>(order);
        List<SortOrder> looks = new ArrayList<>();
        for (Attribute each : CollectionConverters.asJava(rows.output())) {
            if (there.add(each.exprId().id()) && isOrderable(each)) {
                found.add(ascending(each));
            }
            Expression look = lookOf(each);
            if (look != null) {
                looks.add(ascending(look));
            }
        }
        found.addAll(looks);
        return found;
    }

    static boolean isOrderable(Expression value) {
        return RowOrdering$.MODULE$.isOrderable(value.dataType());
    }

    /** In what values of a column that are equal differ: texts under a collation, zeros by sign. Null: in nothing. */
    private static Expression lookOf(Attribute column) {
        DataType type = column.dataType();
        boolean nested = type instanceof ArrayType || type instanceof StructType;
        if (nested) {
            boolean differ = type.existsRecursively(each -> isCollated(each) || isFractional(each));
            return differ ? text(column) : null;
        }
        if (isCollated(type)) {
            return Cast$.MODULE$.apply(column, DataTypes.BinaryType, Option.empty(), false);
        }
        return isFractional(type) ? isBelowZero(column) : null;
    }

    /** Whether it is the zero below zero, which is equal to the other one. */
    private static Expression isBelowZero(Attribute number) {
        Object zero = number.dataType().equals(DataTypes.FloatType) ? (Object) 0.0f : (Object) 0.0;
        Expression isZero = new EqualTo(number, Literal.create(zero, number.dataType()));
        return new And(isZero, new EqualTo(text(number), Literal.create("-0.0", DataTypes.StringType)));
    }

    private static Expression text(Attribute column) {
        return Cast$.MODULE$.apply(column, DataTypes.StringType, Option.apply("UTC"), false);
    }

    private static boolean isFractional(DataType type) {
        return type.equals(DataTypes.DoubleType) || type.equals(DataTypes.FloatType);
    }

    private static boolean isCollated(DataType type) {
        return type instanceof StringType && !((StringType) type).isUTF8BinaryCollation();
    }

    /** Rows with a column more, the number of each within its partition, by an order of all of its columns. */
    static Window numbered(LogicalPlan rows, List<? extends Expression> partition, List<SortOrder> order) {
        SpecifiedWindowFrame frame =
                new SpecifiedWindowFrame(RowFrame$.MODULE$, UnboundedPreceding$.MODULE$, CurrentRow$.MODULE$);
        Seq<Expression> partitions = TieBreaking.seq(partition);
        WindowSpecDefinition spec = new WindowSpecDefinition(partitions, TieBreaking.seq(order), frame);
        NamedExpression number = PlanColumns.alias(new WindowExpression(new RowNumber(), spec), NUMBER);
        return new Window(TieBreaking.seq(List.of(number)), partitions, TieBreaking.seq(order), rows, Option.empty());
    }

    static SortOrder ascending(Expression value) {
        return SortOrder$.MODULE$.apply(value, Ascending$.MODULE$, TieBreaking.seq(List.of()));
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
}
