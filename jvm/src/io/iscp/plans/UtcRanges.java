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
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Has frames of RANGE between times go by UTC, in whichever zone a session is.
 *
 * <p>All other expressions keep the zone in which they were analyzed; where such a frame ends Spark decides as it runs,
 * by the zone of the session then.
 */
public final class UtcRanges {
    private UtcRanges() {}

    /** The plan, and those of subqueries in it. */
    public static LogicalPlan settled(LogicalPlan plan) {
        return plan.transformUpWithSubqueries(new Rewriting<>(UtcRanges::settledAlone));
    }

    private static LogicalPlan settledAlone(LogicalPlan plan) {
        return plan instanceof Window && isOfTimes((Window) plan) ? inUtc((Window) plan) : plan;
    }

    private static boolean isOfTimes(Window window) {
        if (window.orderSpec().size() != 1
                || !window.orderSpec().head().child().dataType().equals(DataTypes.TimestampType)) {
            return false;
        }
        for (NamedExpression each : CollectionConverters.asJava(window.windowExpressions())) {
            WindowExpression function = TieBreaking.windowOf(each);
            if (function != null && TieBreaking.frameOf(function).isValueBound()) {
                return true;
            }
        }
        return false;
    }

    private static LogicalPlan inUtc(Window window) {
        SortOrder given = window.orderSpec().head();
        Expression utc =
                Cast$.MODULE$.apply(given.child(), DataTypes.TimestampNTZType, Option.apply("UTC"), true);
        List<SortOrder> order = List.of(
                given.copy(utc, given.direction(), given.nullOrdering(), TieBreaking.seq(List.of())));
        List<NamedExpression> found = new ArrayList<>();
        for (NamedExpression each : CollectionConverters.asJava(window.windowExpressions())) {
            WindowExpression function = TieBreaking.windowOf(each);
            found.add(function == null ? each : TieBreaking.underOrder(each, order, TieBreaking.frameOf(function)));
        }
        return TieBreaking.withColumns(window, found, TieBreaking.seq(order), window.child());
    }
}
