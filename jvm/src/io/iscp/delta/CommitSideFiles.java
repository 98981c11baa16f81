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
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes what Delta puts beside each commit (NAME.crc, a summary of the table), and streams' checkpoints.
 *
 * <p>Spark's own choice for local paths starts readlink eight times for each, as processes of their own: 40 ms within
 * each commit, for which all wait who wait for that commit. Its other one, this, leaves Hadoop's checksum of each file beside it:
 * a version of a log that is made anew where those were left would not be read by whoever verifies them. So they are
 * deleted, as the first one means to (HADOOP-16255).
 */
public final class CommitSideFiles extends FileSystemBasedCheckpointFileManager {
    public CommitSideFiles(Path directory, Configuration configuration) {
        super(directory, configuration);
    }

    @Override
    public void renameTempFile(Path source, Path target, boolean overwrite) {
        super.renameTempFile(source, target, overwrite);
        if (fs() instanceof LocalFileSystem local) {
            deleteChecksum(local, target);
        }
    }

    private static void deleteChecksum(LocalFileSystem local, Path file) {
        FileSystem raw = local.getRawFileSystem();
        try {
            raw.delete(local.getChecksumFile(file), false);
        } catch (IOException left) {
            // It fits its file: nobody who reads it now is misled.
        }
    }
}
