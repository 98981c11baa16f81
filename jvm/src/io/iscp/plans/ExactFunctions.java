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

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopK;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopKAccumulate;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproxTopKCombine;
import org.apache.spark.sql.catalyst.expressions.aggregate.ApproximatePercentile;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.CentralMomentAgg;
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
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.ShortType$;

/** Functions of groups and windows whose value follows, in its last digits, from the order in which rows come. */
final class ExactFunctions {
    private ExactFunctions() {}

    /** As one whose value does not follow from it, if it is no such already. */
    static AggregateExpression settled(AggregateExpression expression) {
        AggregateFunction function = expression.aggregateFunction();
        if (!addsDoubles(function)) {
            return expression;
        }
        return expression.copy(
                ExactAggregate.of((DeclarativeAggregate) function),
                expression.mode(),
                expression.isDistinct(),
                expression.filter(),
                expression.resultId());
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
