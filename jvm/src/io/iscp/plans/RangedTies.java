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
import org.apache.spark.sql.catalyst.expressions.ArrayJoin;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayItem;
import org.apache.spark.sql.catalyst.expressions.Hex;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NthValue;
import org.apache.spark.sql.catalyst.expressions.RangeFrame$;
import org.apache.spark.sql.catalyst.expressions.Size;
import org.apache.spark.sql.catalyst.expressions.SortArray;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.UnboundedPreceding$;
import org.apache.spark.sql.catalyst.expressions.Unhex;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.CollectList;
import org.apache.spark.sql.catalyst.expressions.aggregate.CollectSet;
import org.apache.spark.sql.catalyst.expressions.aggregate.Complete$;
import org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.MinBy;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Functions of windows over ranges of rows that go by the order of these rows.
 *
 * <p>A range ends with all rows that tie with its last one, so that no longer order can stand for it. The rows are
 * numbered by the longer one below, and the functions go by the number.
 */
final class RangedTies {
    private final Attribute number;
    private final TiedFunctions functions;

    private RangedTies(Attribute number) {
        this.number = number;
        this.functions = new TiedFunctions(List.of(number), false);
    }

    static boolean concern(NamedExpression named, Window window) {
        WindowExpression column = TieBreaking.windowOf(named);
        if (column == null || window.orderSpec().isEmpty()) {
            return false;
        }
        Expression function = TieBreaking.functionOf(column);
        SpecifiedWindowFrame frame = TieBreaking.frameOf(column);
        return isTied(function, column)
                && frame.frameType() instanceof RangeFrame$
                && !TieBreaking.isWhole(frame)
                && !TieBreaking.isFirstOfRange(function, frame);
    }

    /** Without lists of what Spark cannot sort. */
    private static boolean isTied(Expression function, WindowExpression column) {
        boolean listed = function instanceof CollectList
                || function instanceof NthValue && !isOfWholeBegin(function, column);
        return listed
                ? RowOrders.isOrderable(function.children().head())
                : TiedFunctions.isTied(function) || function instanceof NthValue;
    }

    /** The rows, with these columns of the window more. `order`: by all columns of the rows. */
    static LogicalPlan settled(
            List<NamedExpression> columns, Window window, List<SortOrder> order, LogicalPlan rows) {
        Window numbered =
                RowOrders.numbered(rows, CollectionConverters.asJava(window.partitionSpec()), order);
        RangedTies ties = new RangedTies(numbered.output().last());
        List<NamedExpression> computed = new ArrayList<>();
        List<NamedExpression> found = new ArrayList<>(CollectionConverters.asJava(rows.output()));
        for (NamedExpression each : columns) {
            WindowExpression column = TieBreaking.windowOf(each);
            Expression function = TieBreaking.functionOf(column);
            boolean once = isOfWholeBegin(function, column);
            AggregateExpression settled = ties.computed(function, once);
            Alias own = PlanColumns.alias(column.copy(settled, column.windowSpec()), each.name());
            computed.add(own);
            found.add(TieBreaking.as(each, once ? own.toAttribute() : ties.finished(function, own.toAttribute())));
        }
        Window ranged = TieBreaking.withColumns(window, computed, window.orderSpec(), numbered);
        return new Project(TieBreaking.seq(found), ranged);
    }

    /** Whether it is that row of the partition which has the number, where the range has come to it. */
    private static boolean isOfWholeBegin(Expression function, WindowExpression column) {
        return function instanceof NthValue
                && !((NthValue) function).ignoreNulls()
                && TieBreaking.frameOf(column).lower() instanceof UnboundedPreceding$;
    }

    private AggregateExpression computed(Expression function, boolean once) {
        return AggregateExpression$.MODULE$.apply(
                once ? numbered((NthValue) function) : byNumber(function), Complete$.MODULE$, false, Option.empty());
    }

    private AggregateFunction numbered(NthValue function) {
        Expression there = new EqualTo(number, function.offset());
        return new MinBy(function.input(), new If(there, number, Literal.create(null, number.dataType())));
    }

    private AggregateFunction byNumber(Expression function) {
        Expression value = function.children().head();
        if (function instanceof NthValue) {
            return functions.listing(value, !((NthValue) function).ignoreNulls());
        }
        if (function instanceof ListAgg) {
            return functions.listing(isBinary(value) ? new Hex(value) : value, false);
        }
        if (function instanceof CollectSet) {
            return (AggregateFunction) function;
        }
        return function instanceof CollectList
                ? functions.listing(value, false)
                : functions.chosen((AggregateFunction) function);
    }

    /** What the function comes to, of what was computed by number. */
    private Expression finished(Expression function, Attribute computed) {
        if (function instanceof NthValue) {
            NthValue nth = (NthValue) function;
            Expression place = new Subtract(nth.offset(), Literal.create(1, DataTypes.IntegerType));
            return new GetArrayItem(functions.values(computed, !nth.ignoreNulls()), place, false);
        }
        if (function instanceof ListAgg) {
            return joined((ListAgg) function, functions.values(computed, false));
        }
        if (function instanceof CollectSet) {
            return RowOrders.isOrderable(function.children().head()) ? new SortArray(computed) : computed;
        }
        return function instanceof CollectList ? functions.values(computed, false) : computed;
    }

    private static Expression joined(ListAgg function, Expression values) {
        boolean binary = isBinary(function.child());
        DataType type = binary ? DataTypes.StringType : function.child().dataType();
        Expression delimiter = function.delimiter().eval(null) == null
                ? Literal.create("", type)
                : binary ? new Hex(function.delimiter()) : function.delimiter();
        Expression text = new ArrayJoin(values, delimiter);
        Expression empty = new EqualTo(new Size(values, false), Literal.create(0, DataTypes.IntegerType));
        return new If(
                empty,
                Literal.create(null, function.child().dataType()),
                binary ? new Unhex(text) : text);
    }

    private static boolean isBinary(Expression value) {
        return value.dataType().equals(DataTypes.BinaryType);
    }
}
