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
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** What an exact function comes to, of what is known of parts of the rows ({@link ExactPart}). */
public final class ExactWhole extends ExactAggregate {
    private static final long serialVersionUID = 1L;

    private final Expression parts;

    public ExactWhole(DeclarativeAggregate function, int mutableOffset, int inputOffset, Expression parts) {
        super(function, mutableOffset, inputOffset);
        this.parts = parts;
    }

    @Override
    protected ExactAggregate with(DeclarativeAggregate changed, int mutable, int input) {
        return new ExactWhole(changed, mutable, input, parts);
    }

    @Override
    public ExactSums update(ExactSums sums, InternalRow row) {
        byte[] part = (byte[]) parts.eval(row);
        return part == null ? sums : merge(sums, deserialize(part));
    }

    @Override
    public Seq<Expression> children() {
        return TieBreaking.seq(List.of(parts));
    }

    @Override
    public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
        return new ExactWhole(function, mutableAggBufferOffset(), inputAggBufferOffset(), children.head());
    }

    @Override
    public int productArity() {
        return 4;
    }

    @Override
    public Object productElement(int place) {
        return place == 3 ? parts : super.productElement(place);
    }
}
