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
package io.iscp.delta;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.CommitInfo;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The actions of commits, as Delta's reader of changes takes them. */
public final class CommitActions {
    private CommitActions() {}

    /** Each version with its actions, but for what the commit says of itself. */
    public static Iterator<Tuple2<Object, Seq<Action>>> withoutInfo(
            scala.collection.Seq<Tuple2<Object, Seq<Action>>> commits) {
        List<Tuple2<Object, Seq<Action>>> found = new ArrayList<>();
        for (Tuple2<Object, Seq<Action>> commit : CollectionConverters.asJava(commits)) {
            List<Action> actions = new ArrayList<>(CollectionConverters.asJava(commit._2()));
            actions.removeIf(each -> each instanceof CommitInfo);
            found.add(new Tuple2<>(commit._1(), CollectionConverters.asScala(actions).toSeq()));
        }
        return CollectionConverters.asScala(found).iterator();
    }
}
