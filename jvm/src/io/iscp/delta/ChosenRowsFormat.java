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

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.delta.DeltaParquetFileFormat;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * Delta's format of a table, for reading some row groups of one large file.
 *
 * <p>It has `_metadata.row_index` for every table: Delta's own leaves it out where neither deletion vectors nor row
 * tracking need it. And it passes over the bytes of other row groups: no condition on a row's place has Spark do that.
 * Which rows are read is decided by that condition alone, so that a format of Delta's own may take its place in a plan.
 */
public final class ChosenRowsFormat extends DeltaParquetFileFormat {
    private static final long serialVersionUID = 1L;
    private final long start;
    private final long end;

    private ChosenRowsFormat(DeltaParquetFileFormat delta, Option<String> tablePath, boolean optimized, long[] span) {
        super(
                delta.protocol(),
                delta.metadata(),
                delta.nullableRowTrackingConstantFields(),
                delta.nullableRowTrackingGeneratedFields(),
                optimized,
                tablePath,
                delta.isCDCRead());
        start = span[0];
        end = span[1];
    }

    /** How many rows each row group of a file has, which is named as the table's log does. */
    public static long[] groupRows(HadoopFsRelation delta, String path) throws IOException {
        HadoopInputFile file = fileOf(delta, path);
        return groupsBetween(file, 0, file.getLength()).stream().mapToLong(BlockMetaData::getRowCount).toArray();
    }

    /** A relation of one file, of which the rows from `firstRow` to before `lastRow`, by place, are to be read. */
    public static HadoopFsRelation relation(HadoopFsRelation delta, String path, long firstRow, long lastRow)
            throws IOException {
        long[] span = bytesOf(fileOf(delta, path), firstRow, lastRow);
        DeltaParquetFileFormat format = (DeltaParquetFileFormat) delta.fileFormat();
        FileFormat chosen = new ChosenRowsFormat(format, format.tablePath(), format.optimizationsEnabled(), span);
        return delta.copy(
                delta.location(),
                delta.partitionSchema(),
                delta.dataSchema(),
                delta.bucketSpec(),
                chosen,
                delta.options(),
                delta.sparkSession());
    }

    /**
     * Where the row groups of these rows lie in the file; all of it where its footer does not say so for certain.
     *
     * <p>Readers take a row group for that part of a file which has its middle, by sizes that writers may have wrong:
     * so the reader itself is asked for the row groups of what was found.
     */
    private static long[] bytesOf(HadoopInputFile file, long firstRow, long lastRow) throws IOException {
        long length = file.getLength();
        long first = length;
        long last = 0;
        List<Long> wanted = new ArrayList<>();
        List<BlockMetaData> groups = groupsBetween(file, 0, length);
        for (int number = 0; number < groups.size(); number++) {
            BlockMetaData group = groups.get(number);
            if (group.getRowIndexOffset() < lastRow && group.getRowIndexOffset() + group.getRowCount() > firstRow) {
                wanted.add(group.getRowIndexOffset());
                first = Math.min(first, group.getStartingPos());
                boolean isLast = number + 1 == groups.size();
                last = Math.max(last, isLast ? length : groups.get(number + 1).getStartingPos());
            }
        }
        List<Long> found = new ArrayList<>();
        if (first < last) {
            groupsBetween(file, first, last).forEach(group -> found.add(group.getRowIndexOffset()));
        }
        return found.containsAll(wanted) ? new long[] {first, last} : new long[] {0, length};
    }

    private static HadoopInputFile fileOf(HadoopFsRelation delta, String path) throws IOException {
        Configuration conf = delta.getHadoopConf(delta.sparkSession(), delta.options());
        return HadoopInputFile.fromPath(((TahoeFileIndex) delta.location()).absolutePath(path), conf);
    }

    private static List<BlockMetaData> groupsBetween(HadoopInputFile file, long start, long end) throws IOException {
        HadoopReadOptions.Builder options = HadoopReadOptions.builder(file.getConfiguration(), file.getPath());
        try (ParquetFileReader reader = ParquetFileReader.open(file, options.withRange(start, end).build())) {
            return reader.getRowGroups();
        }
    }

    @Override
    public Seq<StructField> metadataSchemaFields() {
        List<StructField> fields = new ArrayList<>(CollectionConverters.asJava(super.metadataSchemaFields()));
        StructField place = ParquetFileFormat.ROW_INDEX_FIELD();
        if (!fields.contains(place)) {
            fields.add(place);
        }
        return CollectionConverters.asScala(fields).toSeq();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ChosenRowsFormat that && that.start == start && that.end == end && super.equals(that);
    }

    @Override
    public int hashCode() {
        return Objects.hash(super.hashCode(), start, end);
    }

    @Override
    public DeltaParquetFileFormat copyWithDVInfo(String tablePath, boolean optimizationsEnabled) {
        return new ChosenRowsFormat(this, Option.apply(tablePath), optimizationsEnabled, new long[] {start, end});
    }

    @Override
    public Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(
            SparkSession spark,
            StructType dataSchema,
            StructType partitionSchema,
            StructType requiredSchema,
            Seq<Filter> filters,
            Map<String, String> options,
            Configuration conf) {
        return new PartReader(
                super.buildReaderWithPartitionValues(
                        spark, dataSchema, partitionSchema, requiredSchema, filters, options, conf),
                start,
                end);
    }

    /** Reads what a task's part of the file has of the bytes that are wanted. */
    private static final class PartReader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>>
            implements Serializable {
        private static final long serialVersionUID = 1L;
        private final Function1<PartitionedFile, Iterator<InternalRow>> read;
        private final long start;
        private final long end;

        PartReader(Function1<PartitionedFile, Iterator<InternalRow>> read, long start, long end) {
            this.read = read;
            this.start = start;
            this.end = end;
        }

        @Override
        public Iterator<InternalRow> apply(PartitionedFile file) {
            long first = Math.max(file.start(), start);
            long last = Math.min(file.start() + file.length(), end);
            if (first >= last) {
                return scala.collection.Iterator$.MODULE$.empty();
            }
            return read.apply(new PartitionedFile(
                    file.partitionValues(),
                    file.filePath(),
                    first,
                    last - first,
                    file.locations(),
                    file.modificationTime(),
                    file.fileSize(),
                    file.otherConstantMetadataColumnValues()));
        }
    }
}
