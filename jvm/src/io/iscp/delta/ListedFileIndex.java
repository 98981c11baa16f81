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

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.SnapshotDescriptor;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import scala.collection.immutable.Seq;

/**
 * Few files of a table that are known.
 *
 * <p>Delta plans and runs a query over the list of files for each scan, also where no condition leaves out any: a tenth
 * of a plan over small tables.
 */
public final class ListedFileIndex extends TahoeBatchFileIndex {
    public ListedFileIndex(SparkSession spark, Seq<AddFile> files, DeltaLog log, SnapshotDescriptor snapshot) {
        super(spark, "batch", files, log, log.dataPath(), snapshot, false);
    }

    @Override
    public Seq<AddFile> matchingFiles(Seq<Expression> partitionFilters, Seq<Expression> dataFilters) {
        return partitionFilters.isEmpty() ? addFiles() : super.matchingFiles(partitionFilters, dataFilters);
    }
}
