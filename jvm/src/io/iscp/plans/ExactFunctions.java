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

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NumericEvalContext;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopK;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopKAccumulate;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopKCombine;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproximatePercentile;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.CentralMomentAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Covariance;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.expressions.aggregate.HistogramNumeric;
import org.apache.spark.sql.catalyst.expressions.aggregate.HllSketchAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.HllUnionAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.KllSketchAggBase;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.PearsonCorrelation;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrIntercept;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrSlope;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.expressions.aggregate.ThetaIntersectionAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.ThetaSketchAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.ThetaUnionAgg;
import org.apache.spark.sql.types.ByteType$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType$;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.ShortType$;
import scala.Option;

/** Functions of groups and windows whose value follows, in its last digits, from the order in which rows come. */
final class ExactFunctions {
    private static final DataType LONG = DataTypes.createDecimalType(20, 0);

    private ExactFunctions() {}

    /** As what gives the same in whichever order rows come; what does so already stays as it is. */
    static Expression settled(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        boolean whole = function instanceof Average && isLargeWhole(typeOf(function)) && !expression.isDistinct();
        return whole ? averageOfWhole(expression, typeOf(function)) : settledOne(expression);
    }

    /** As one function. */
    static AggregateExpression settledOne(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        return addsDoubles(function) ? with(expression, ExactAggregate.of((DeclarativeAggregate) function)) : expression;
    }

    /** Of what Spark adds up exactly, and is kept where sums are. */
    private static Expression averageOfWhole(AggregateExpression expression, DataType type) {
        Expression value = expression.aggregateFunction().children().head();
        boolean fits = type instanceof IntegerType$; // whose sums are of 64 bits
        Expression added = fits ? value : Cast$.MODULE$.apply(value, LONG, Option.empty(), true);
        NumericEvalContext failing = NumericEvalContext.apply(EvalMode$.MODULE$.ANSI(), true);
        NumericEvalContext lenient = NumericEvalContext.apply(EvalMode$.MODULE$.LEGACY(), true);
        Expression sum = another(expression, new Sum(added, failing));
        Expression count = another(expression, new Count(TieBreaking.seq(List.of(value))));
        return new Divide(asDouble(sum), asDouble(count), lenient);
    }

    private static Expression asDouble(Expression number) {
        return Cast$.MODULE$.apply(number, DataTypes.DoubleType, Option.empty(), true);
    }

    private static AggregateExpression with(AggregateExpression expression, AggregateFunction function) {
        return expression.copy(
                function, expression.mode(), expression.isDistinct(), expression.filter(), expression.resultId());
    }

    private static AggregateExpression another(AggregateExpression expression, AggregateFunction function) {
        return expression.copy(
                function, expression.mode(), false, expression.filter(), NamedExpression.newExprId());
    }

    private static boolean addsDoubles(AggregateFunction function) {
        if (function instanceof Sum) {
            return DecidingSums.isDouble(typeOf(function));
        }
        if (function instanceof Average) {
            return DecidingSums.isDouble(typeOf(function)) || isLargeWhole(typeOf(function));
        }
        return function instanceof CentralMomentAgg
                || function instanceof Covariance
                || function instanceof PearsonCorrelation
                || function instanceof RegrSlope
                || function instanceof RegrIntercept;
    }

    private static DataType typeOf(Expression function) {
        return function.children().head().dataType();
    }

    /** Whether doubles do not hold sums of so many of them as there may be. */
    private static boolean isLargeWhole(DataType type) {
        return type instanceof IntegralType && !(type instanceof ByteType$) && !(type instanceof ShortType$);
    }

    /** Whether it gives near values of near ones. */
    static boolean follows(AggregateFunction function) {
        return function instanceof Sum
                || function instanceof Average
                || function instanceof Min
                || function instanceof Max
                || function instanceof First; // that is left where it has one value to choose from
    }

    /** Whether it follows from the order in which rows come, or from chance, and nothing can be done about that. */
    static boolean isUnsettled(AggregateFunction function) {
        return function instanceof ApproximatePercentile
                || function instanceof ApproxTopK
                || function instanceof ApproxTopKAccumulate
                || function instanceof ApproxTopKCombine
                || function instanceof HistogramNumeric
                || function instanceof HllSketchAgg
                || function instanceof HllUnionAgg
                || function instanceof KllSketchAggBase
                || function instanceof ThetaIntersectionAgg
                || function instanceof ThetaSketchAgg
                || function instanceof ThetaUnionAgg;
    }
}
