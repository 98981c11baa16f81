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
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.PreciseTimestampConversion;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.expressions.Sequence;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.UnixDate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.YearMonthIntervalType;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Has functions that make as much as a number says fail where that is too much, before they make it.
 *
 * <p>What may fail is no constant: so the optimizer, which computes constants, computes none of them either, unless it
 * has seen that the number is small enough.
 */
public final class SizeBounds {
    private static final Map<String, Integer> NUMBER_AT = Map.of(
            "StringRepeat", 1,
            "StringSpace", 0,
            "StringLPad", 1,
            "StringRPad", 1,
            "BinaryPad", 1,
            "ArrayRepeat", 1,
            "ArrayInsert", 1);
    private static final double DAY_MICROS = 86_400e6;
    private static final double MONTH_DAYS_LEAST = 28;

    private final int most;
    private final String said;

    private SizeBounds(int most, String said) {
        this.most = most;
        this.said = said;
    }

    /** The analyzed plan in which no call makes more than `most` elements or characters, or else fails with `said`. */
    public static LogicalPlan bounded(LogicalPlan plan, int most, String said) {
        SizeBounds bounds = new SizeBounds(most, said);
        return plan.transformAllExpressionsWithSubqueries(new Rewriting<>(bounds::bounded));
    }

    private Expression bounded(Expression call) {
        List<Expression> arguments = new ArrayList<>(CollectionConverters.asJava(call.children()));
        if (call instanceof Sequence) {
            arguments.set(1, unlessTooMany((Sequence) call));
        } else {
            Integer at = NUMBER_AT.get(call.getClass().getSimpleName());
            if (at == null || arguments.get(at) instanceof Literal) {
                return call; // one that is written in the query has been refused where it is too large
            }
            Expression number = arguments.get(at);
            arguments.set(at, unless(new GreaterThan(size(number), literal(most)), number));
        }
        return call.withNewChildren(TieBreaking.seq(arguments));
    }

    private Expression unlessTooMany(Sequence call) {
        Expression last = call.stop();
        Expression steps = literal(most);
        if (!call.stepOpt().isEmpty()) {
            steps = new Multiply(literal(most), step(call.stepOpt().get()));
        } else if (!(last.dataType() instanceof NumericType)) {
            steps = literal(most * DAY_MICROS);
        }
        Expression span = new Abs(new Subtract(place(last), place(call.start())));
        return unless(new GreaterThan(span, steps), last);
    }

    /** A value of a sequence as a number, of microseconds where it is a time. */
    private static Expression place(Expression value) {
        DataType type = value.dataType();
        if (type.equals(DataTypes.DateType)) {
            return new Multiply(asDouble(new UnixDate(value)), literal(DAY_MICROS));
        }
        return asDouble(type instanceof NumericType ? value : inside(value));
    }

    /** At least how much a step of a sequence is, as `place` has it. */
    private static Expression step(Expression step) {
        DataType type = step.dataType();
        if (type instanceof NumericType) {
            return size(step);
        } else if (type instanceof DayTimeIntervalType) {
            return new Abs(asDouble(inside(step)));
        } else if (type instanceof YearMonthIntervalType) {
            return literal(MONTH_DAYS_LEAST * DAY_MICROS);
        }
        Object value = step instanceof Literal ? ((Literal) step).value() : null;
        if (!(value instanceof CalendarInterval)) {
            return literal(1); // a microsecond: it is not known before
        }
        CalendarInterval known = (CalendarInterval) value;
        return literal(Math.abs((known.months * MONTH_DAYS_LEAST + known.days) * DAY_MICROS + known.microseconds));
    }

    private Expression unless(Expression tooMany, Expression value) {
        RaiseError fault = new RaiseError(new Literal(UTF8String.fromString(said), DataTypes.StringType));
        return new If(tooMany, new RaiseError(fault.errorClass(), fault.errorParms(), value.dataType()), value);
    }

    private static Expression size(Expression number) {
        return new Abs(asDouble(number));
    }

    /** The whole number that Spark has inside for a time or an interval. */
    private static Expression inside(Expression value) {
        return new PreciseTimestampConversion(value, value.dataType(), DataTypes.LongType);
    }

    private static Expression asDouble(Expression number) {
        return Cast$.MODULE$.apply(number, DataTypes.DoubleType, false);
    }

    private static Literal literal(double value) {
        return new Literal(value, DataTypes.DoubleType);
    }
}
