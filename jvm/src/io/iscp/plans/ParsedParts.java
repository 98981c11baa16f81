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

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Product;
import scala.collection.IterableOnce;

/**
 * All that a parsed query or condition is made of, as data: its nodes, and whatever lies in their fields.
 *
 * <p>A node's children are not all that it has: those of WITH, WINDOW and `* REPLACE` lie in other fields.
 */
public final class ParsedParts {
    private final ObjectMapper mapper = new ObjectMapper();
    private final List<Product> found = new ArrayList<>();
    private final int most;

    private ParsedParts(int most) {
        this.most = most;
    }

    /**
     * A JSON array of the parts, the root first: `kind` (plan, expression or other), `name` of the class, `line` and
     * `column` where they are known, and its `fields` by name, in which another part is an object with its place, as
     * `{"at": 7}`, a type and a number with a fraction are texts, and what is neither a part nor a value is null. Empty:
     * there are more than `most` parts.
     */
    public static String json(TreeNode<?> root, int most) throws Exception {
        ParsedParts parts = new ParsedParts(most);
        ArrayNode described = parts.mapper.createArrayNode();
        parts.found.add((Product) root);
        for (int at = 0; at < parts.found.size(); at++) {
            if (at >= most) {
                return "";
            }
            parts.describe(parts.found.get(at), described.addObject());
        }
        return parts.mapper.writeValueAsString(described);
    }

    private void describe(Product part, ObjectNode into) {
        boolean plan = part instanceof LogicalPlan;
        into.put("kind", plan ? "plan" : part instanceof Expression ? "expression" : "other");
        into.put("name", simpleName(part));
        if (part instanceof TreeNode) {
            Origin origin = ((TreeNode<?>) part).origin();
            if (origin.line().isDefined() && origin.startPosition().isDefined()) {
                into.put("line", (Integer) origin.line().get());
                into.put("column", (Integer) origin.startPosition().get() + 1);
            }
        }
        ObjectNode fields = into.putObject("fields");
        for (int number = 0; number < part.productArity(); number++) {
            fields.set(part.productElementName(number), described(part.productElement(number)));
        }
    }

    private JsonNode described(Object field) {
        JsonNodeFactory nodes = mapper.getNodeFactory();
        if (field instanceof Boolean) {
            return nodes.booleanNode((Boolean) field);
        } else if (field instanceof Long || field instanceof Integer || field instanceof Short || field instanceof Byte) {
            return nodes.numberNode(((Number) field).longValue());
        } else if (field instanceof DataType) {
            return nodes.textNode(((DataType) field).typeName());
        } else if (isText(field)) {
            return nodes.textNode(field.toString());
        } else if (field instanceof IterableOnce) {
            ArrayNode items = nodes.arrayNode();
            ((IterableOnce<?>) field).iterator().foreach(each -> items.add(described(each)));
            return items;
        } else if (field instanceof Object[]) {
            ArrayNode items = nodes.arrayNode();
            Arrays.stream((Object[]) field).forEach(each -> items.add(described(each)));
            return items;
        } else if (field instanceof Product) {
            if (found.size() <= most) {
                found.add((Product) field);
            }
            return nodes.objectNode().put("at", found.size() - 1);
        }
        return nodes.nullNode();
    }

    private static boolean isText(Object field) {
        return field instanceof CharSequence
                || field instanceof UTF8String
                || field instanceof Number
                || field instanceof Decimal;
    }

    private static String simpleName(Product part) {
        String name = part.getClass().getName();
        name = name.endsWith("$") ? name.substring(0, name.length() - 1) : name;
        return name.substring(name.lastIndexOf('.') + 1);
    }
}
