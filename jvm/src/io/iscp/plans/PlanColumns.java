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
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Columns of plans, and projections of them, all of a plan's at once.
 *
 * <p>From Python each column takes several calls of its own, of which a refresh makes thousands.
 */
public final class PlanColumns {
    /** Marks a column of session windows: Spark merges rows that are grouped by one where they overlap. */
    private static final String SESSION = "spark.sessionWindow";

    private PlanColumns() {}

    /** The ids of the plan's columns, in order, separated by spaces. */
    public static String ids(LogicalPlan plan) {
        StringJoiner ids = new StringJoiner(" ");
        for (Attribute each : columns(plan)) {
            ids.add(Long.toString(each.exprId().id()));
        }
        return ids.toString();
    }

    /** The names of the plan's columns, in order, each ended by a character with the code 0. */
    public static String names(LogicalPlan plan) {
        StringBuilder names = new StringBuilder();
        for (Attribute each : columns(plan)) {
            names.append(each.name()).append('\0');
        }
        return names.toString();
    }

    /** The value under a new id. */
    public static Alias alias(Expression value, String name) {
        return under(value, name, NamedExpression.newExprId());
    }

    /** The child's columns, in their order, under the names and ids of those of another plan. */
    public static Project renamed(LogicalPlan child, LogicalPlan like) {
        return renamedAs(child, like.output());
    }

    /** As `renamed`, of columns of no plan. */
    public static Project renamedAs(LogicalPlan child, Seq<Attribute> like) {
        List<Attribute> there = columns(child);
        List<Attribute> wanted = CollectionConverters.asJava(like);
        if (there.size() != wanted.size()) {
            throw new IllegalArgumentException(there + " are not as many columns as " + wanted);
        }
        return project(underIds(there, wanted), child);
    }

    /**
     * The child's columns, which are some of the other plan's, in the order of these, with nulls for those that are not
     * there. `weighted`: the child has one more, which comes last.
     */
    public static LogicalPlan widened(LogicalPlan child, LogicalPlan like, boolean weighted) {
        List<Attribute> there = columns(child);
        List<Attribute> wanted = columns(like);
        int own = weighted ? there.size() - 1 : there.size();
        if (own == wanted.size()) {
            return child;
        }
        Map<String, Attribute> byName = new HashMap<>();
        for (Attribute each : there.subList(0, own)) {
            byName.put(each.name().toLowerCase(Locale.ROOT), each);
        }
        List<NamedExpression> found = new ArrayList<>();
        for (Attribute each : wanted) {
            Attribute known = byName.get(each.name().toLowerCase(Locale.ROOT));
            Literal missing = new Literal(null, each.dataType());
            found.add(known != null ? known : alias(missing, each.name()));
        }
        found.addAll(there.subList(own, there.size()));
        return project(found, child);
    }

    /** Columns of the child's, those of the other plan, as `c0`, `c1`, …, and more as they are. */
    public static Project numbered(LogicalPlan child, LogicalPlan like, Seq<NamedExpression> more) {
        List<NamedExpression> named = new ArrayList<>();
        for (Attribute each : columns(like)) {
            named.add(alias(each, "c" + named.size()));
        }
        named.addAll(CollectionConverters.asJava(more));
        return project(named, child);
    }

    /** These columns of the child's under new ids. */
    public static Project afresh(LogicalPlan child, Seq<Attribute> columns) {
        List<NamedExpression> named = new ArrayList<>();
        for (Attribute each : CollectionConverters.asJava(columns)) {
            named.add(alias(each, each.name()));
        }
        return project(named, child);
    }

    private static List<Attribute> columns(LogicalPlan plan) {
        return CollectionConverters.asJava(plan.output());
    }

    /** The first columns, as many as are wanted, under the names and ids of these. */
    private static List<NamedExpression> underIds(List<Attribute> columns, List<Attribute> wanted) {
        List<NamedExpression> named = new ArrayList<>();
        for (int place = 0; place < wanted.size(); place++) {
            named.add(under(columns.get(place), wanted.get(place).name(), wanted.get(place).exprId()));
        }
        return named;
    }

    /** Without the mark of sessions: what groups by it here, as to net rows, means the values. */
    private static Alias under(Expression value, String name, ExprId id) {
        Seq<String> nothing = CollectionConverters.asScala(new ArrayList<String>()).toSeq();
        Option<Metadata> metadata = Option.empty();
        if (value instanceof Attribute && ((Attribute) value).metadata().contains(SESSION)) {
            Metadata own = ((Attribute) value).metadata();
            metadata = Option.apply(new MetadataBuilder().withMetadata(own).remove(SESSION).build());
        }
        return new Alias(value, name, id, nothing, metadata, nothing);
    }

    private static Project project(List<NamedExpression> columns, LogicalPlan child) {
        return new Project(CollectionConverters.asScala(columns).toSeq(), child);
    }
}
