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

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BindReferences$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.CentralMomentAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.ImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrIntercept;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrSlope;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.expressions.aggregate.TypedImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A function of Spark's that adds doubles, and what it holds after all rows is known exactly, and then rounded: it is the
 * same in whichever order they come. The last step is Spark's own.
 */
public class ExactAggregate extends TypedImperativeAggregate<ExactSums> implements Serializable {
    private static final long serialVersionUID = 1L;

    protected final DeclarativeAggregate function;
    private final int mutableOffset;
    private final int inputOffset;
    private transient Expression[] arguments;
    private transient Expression last;
    private transient AttributeReference result;

    public ExactAggregate(DeclarativeAggregate function, int mutableOffset, int inputOffset) {
        this.function = function;
        this.mutableOffset = mutableOffset;
        this.inputOffset = inputOffset;
    }

    /** Of Spark's own; it is that of doubles, or an average of whole numbers. */
    static ExactAggregate of(DeclarativeAggregate function) {
        return new ExactAggregate(function, 0, 0);
    }

    protected ExactAggregate with(DeclarativeAggregate changed, int mutable, int input) {
        return new ExactAggregate(changed, mutable, input);
    }

    public DeclarativeAggregate function() {
        return function;
    }

    /** The last step, of what Spark's function holds after all rows. */
    public Expression evaluateExpression() {
        return function.evaluateExpression();
    }

    /** A column that stands for what it comes to after all rows. */
    public AttributeReference result() {
        if (result == null) {
            Seq<String> nothing = TieBreaking.seq(List.of());
            result = new AttributeReference(
                    "result", dataType(), true, Metadata.empty(), NamedExpression.newExprId(), nothing);
        }
        return result;
    }

    /** What is known of a part of the rows, of a column in the place of its argument. */
    public Column part(Column value) {
        return part(List.of(ExpressionUtils.expression(value)));
    }

    public Column part(Column first, Column second) {
        return part(List.of(ExpressionUtils.expression(first), ExpressionUtils.expression(second)));
    }

    private Column part(List<Expression> values) {
        DeclarativeAggregate over = (DeclarativeAggregate) function.withNewChildren(TieBreaking.seq(values));
        return ExpressionUtils.column(new ExactPart(over, 0, 0).toAggregateExpression());
    }

    /** What it comes to, of a column of such parts. */
    public Column whole(Column parts) {
        ExactWhole found = new ExactWhole(function, 0, 0, ExpressionUtils.expression(parts));
        return ExpressionUtils.column(found.toAggregateExpression());
    }

    // --- what is added --------------------------------------------------------------------------------------------

    @Override
    public ExactSums createAggregationBuffer() {
        if (function.children().size() == 2) {
            return ExactSums.ofPairs();
        }
        boolean plain = function instanceof Sum || function instanceof Average;
        return ExactSums.ofPowers(plain ? 1 : function.aggBufferAttributes().size() - 1);
    }

    @Override
    public ExactSums update(ExactSums sums, InternalRow row) {
        if (arguments == null) {
            arguments = CollectionConverters.asJava(children()).toArray(new Expression[0]);
        }
        Object first = arguments[0].eval(row);
        if (first == null) {
            return sums;
        }
        if (arguments.length == 1) {
            if (isWhole(first)) {
                sums.add(((Number) first).longValue());
            } else {
                sums.add(((Number) first).doubleValue());
            }
            return sums;
        }
        Object second = arguments[1].eval(row);
        if (second != null) {
            double x = ((Number) first).doubleValue();
            double y = ((Number) second).doubleValue();
            if (isOfSecond()) {
                sums.add(y, x);
            } else {
                sums.add(x, y);
            }
        }
        return sums;
    }

    private static boolean isWhole(Object value) {
        return value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte;
    }

    /** Whether it is how the first argument follows the second. */
    private boolean isOfSecond() {
        return function instanceof RegrSlope || function instanceof RegrIntercept;
    }

    @Override
    public ExactSums merge(ExactSums sums, ExactSums others) {
        sums.add(others);
        return sums;
    }

    @Override
    public Object eval(ExactSums sums) {
        if (last == null) {
            last = BindReferences$.MODULE$.bindReference(
                    function.evaluateExpression(),
                    package$.MODULE$.AttributeSeq(TieBreaking.seq(CollectionConverters.asJava(function.aggBufferAttributes()))),
                    false);
        }
        return last.eval(new GenericInternalRow(held(sums)));
    }

    /** What Spark's function holds after these. */
    private Object[] held(ExactSums sums) {
        if (function instanceof Sum) {
            return new Object[] {sums.count() == 0 ? null : (Object) sums.sum()};
        }
        if (function instanceof Average) {
            return new Object[] {sums.sum(), sums.count()};
        }
        List<AttributeReference> buffers = CollectionConverters.asJava(function.aggBufferAttributes());
        Object[] found = new Object[buffers.size()];
        for (int place = 0; place < found.length; place++) {
            found[place] = held(buffers.get(place).name(), sums);
        }
        return found;
    }

    private Object held(String name, ExactSums sums) {
        boolean single = function instanceof CentralMomentAgg;
        switch (name) {
            case "n":
                return (double) sums.count();
            case "avg":
            case "xAvg":
                return sums.averageOfFirst();
            case "yAvg":
                return sums.averageOfSecond();
            case "m2":
                return single ? sums.moment(2) : sums.momentOfFirst();
            case "m3":
                return sums.moment(3);
            case "m4":
                return sums.moment(4);
            case "ck":
                return sums.comoment();
            case "xMk":
                return sums.momentOfFirst();
            case "yMk":
                return sums.momentOfSecond();
            default:
                throw new IllegalArgumentException(function + " holds " + name + ", which is not known");
        }
    }

    @Override
    public byte[] serialize(ExactSums sums) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try {
            sums.write(new DataOutputStream(bytes));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return bytes.toByteArray();
    }

    @Override
    public ExactSums deserialize(byte[] bytes) {
        try {
            return ExactSums.read(new DataInputStream(new ByteArrayInputStream(bytes)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    // --- as an expression -----------------------------------------------------------------------------------------

    @Override
    public Seq<Expression> children() {
        return function.children();
    }

    @Override
    public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
        return with((DeclarativeAggregate) function.withNewChildren(children), mutableOffset, inputOffset);
    }

    @Override
    public DataType dataType() {
        return DataTypes.DoubleType;
    }

    @Override
    public boolean nullable() {
        return true;
    }

    @Override
    public int mutableAggBufferOffset() {
        return mutableOffset;
    }

    @Override
    public ImperativeAggregate withNewMutableAggBufferOffset(int offset) {
        return with(function, offset, inputOffset);
    }

    @Override
    public int inputAggBufferOffset() {
        return inputOffset;
    }

    @Override
    public ImperativeAggregate withNewInputAggBufferOffset(int offset) {
        return with(function, mutableOffset, offset);
    }

    @Override
    public String prettyName() {
        return function.prettyName();
    }

    @Override
    public String toString() {
        return function.toString();
    }

    @Override
    public String toAggString(boolean distinct) {
        return function.toAggString(distinct);
    }

    @Override
    public int productArity() {
        return 3;
    }

    @Override
    public Object productElement(int place) {
        return place == 0 ? function : (Object) (place == 1 ? mutableOffset : inputOffset);
    }

    @Override
    public boolean canEqual(Object other) {
        return other != null && other.getClass() == getClass();
    }

    @Override
    public boolean equals(Object other) {
        return canEqual(other) && elements(this).equals(elements((ExactAggregate) other));
    }

    @Override
    public int hashCode() {
        return elements(this).hashCode();
    }

    private static List<Object> elements(ExactAggregate aggregate) {
        List<Object> found = new ArrayList<>();
        for (int place = 0; place < aggregate.productArity(); place++) {
            found.add(aggregate.productElement(place));
        }
        return found;
    }
}
