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

import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** What an exact function knows of a part of the rows, as bytes; {@link ExactWhole} puts such parts together. */
public final class ExactPart extends ExactAggregate {
    private static final long serialVersionUID = 1L;

    public ExactPart(DeclarativeAggregate function, int mutableOffset, int inputOffset) {
        super(function, mutableOffset, inputOffset);
    }

    @Override
    protected ExactAggregate with(DeclarativeAggregate changed, int mutable, int input) {
        return new ExactPart(changed, mutable, input);
    }

    @Override
    public Object eval(ExactSums sums) {
        return serialize(sums);
    }

    @Override
    public DataType dataType() {
        return DataTypes.BinaryType;
    }
}
