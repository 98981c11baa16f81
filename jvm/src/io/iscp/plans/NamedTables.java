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
import java.util.Locale;
import java.util.Set;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Tables whose names in a parsed query have several parts, as `lake.sales.orders`, read as temporary views whose names
 * are the parts with dots between them, as one identifier.
 *
 * <p>Columns go on by the table's last part or by more of its parts, as Spark has it for tables of a catalog.
 */
public final class NamedTables {
    private final Set<String> names;

    private NamedTables(Set<String> names) {
        this.names = names;
    }

    /** The query in which tables of these `names`, in small letters, are read so; others stay as they are. */
    public static LogicalPlan asViews(LogicalPlan query, Set<String> names) {
        return new NamedTables(names).rewritten(query);
    }

    private LogicalPlan rewritten(LogicalPlan query) {
        return query.transformDownWithSubqueries(new Rewriting<>(this::renamed));
    }

    private LogicalPlan renamed(LogicalPlan node) {
        if (node instanceof UnresolvedWith) {
            return withQueries((UnresolvedWith) node);
        }
        if (!(node instanceof UnresolvedRelation)) {
            return node;
        }
        UnresolvedRelation relation = (UnresolvedRelation) node;
        List<String> parts = CollectionConverters.asJava(relation.multipartIdentifier());
        String name = String.join(".", parts);
        if (parts.size() < 2 || !names.contains(name.toLowerCase(Locale.ROOT))) {
            return node;
        }
        LogicalPlan view = new UnresolvedRelation(seq(List.of(name)), relation.options(), relation.isStreaming());
        int last = parts.size() - 1;
        return new SubqueryAlias(new AliasIdentifier(parts.get(last), seq(parts.subList(0, last))), view);
    }

    /** The queries of a WITH are no children of it. Each is a pair, or with later releases a triple. */
    private LogicalPlan withQueries(UnresolvedWith with) {
        Object[] fields = new Object[with.productArity()];
        for (int number = 0; number < fields.length; number++) {
            fields[number] = with.productElement(number);
            if (with.productElementName(number).equals("cteRelations")) {
                List<Object> queries = new ArrayList<>();
                for (Object each : CollectionConverters.asJava(with.cteRelations())) {
                    queries.add(withQuery((Product) each));
                }
                fields[number] = seq(queries);
            }
        }
        return with.makeCopy(fields);
    }

    private Product withQuery(Product named) {
        LogicalPlan query = rewritten((LogicalPlan) named.productElement(1));
        if (named.productArity() == 2) {
            return new Tuple2<>(named.productElement(0), query);
        }
        return new Tuple3<>(named.productElement(0), query, named.productElement(2));
    }

    private static <T> Seq<T> seq(List<T> items) {
        return CollectionConverters.asScala(new ArrayList<>(items)).toSeq();
    }
}
