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

import java.util.function.UnaryOperator;
import scala.Function1;
import scala.runtime.AbstractPartialFunction;

/** A rewriting of the nodes of plans, or of expressions, as Catalyst takes it: what stays as it is is given back. */
final class Rewriting<T> extends AbstractPartialFunction<T, T> {
    private final UnaryOperator<T> rewrite;

    Rewriting(UnaryOperator<T> rewrite) {
        this.rewrite = rewrite;
    }

    @Override
    public boolean isDefinedAt(T node) {
        return true;
    }

    @Override
    public <A1 extends T, B1> B1 applyOrElse(A1 node, Function1<A1, B1> otherwise) {
        @SuppressWarnings("unchecked") // Catalyst asks for a T
        B1 found = (B1) rewrite.apply(node);
        return found;
    }
}
