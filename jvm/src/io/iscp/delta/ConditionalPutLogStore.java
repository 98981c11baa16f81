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

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/**
 * Delta's log on S3, where of several processes that write one version exactly one wins.
 *
 * <p>Delta's own S3SingleDriverLogStore looks whether the version exists and then puts it, under a
 * lock that other processes do not see. Here S3 itself decides: the put says {@code If-None-Match: *},
 * as delta-rs's does, and is refused if the object is there. See docs/adr/0002-put-if-absent.md.
 */
public final class ConditionalPutLogStore extends HadoopFileSystemLogStore {

    /** Metadata of a commit's object: who wrote it. */
    private static final String WRITER = "iscp-writer";

    public ConditionalPutLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    /**
     * Puts {@code actions} at {@code path}, whole or not at all.
     *
     * <p>An IOException other than FileAlreadyExistsException means what it means everywhere: the
     * outcome is unknown to the caller.
     *
     * @throws FileAlreadyExistsException if another writer has this version and overwrite is false
     */
    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        FileSystem fileSystem = path.getFileSystem(hadoopConf);
        if (overwrite) {
            put(fileSystem.create(path, true), actions);
            return;
        }
        byte[] writer = UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8);
        FSDataOutputStreamBuilder<?, ?> builder = fileSystem.createFile(path);
        builder.overwrite(true); // the check comes with the put, by this option, and not before:
        builder.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
        builder.opt("fs.s3a.create.header." + WRITER, new String(writer, StandardCharsets.UTF_8));
        try {
            put(builder.build(), actions);
        } catch (RemoteFileChangedException e) {
            // A put whose answer was lost is repeated, and then finds the object that it has made.
            if (!Arrays.equals(writer, fileSystem.getXAttr(path, "header." + WRITER))) {
                throw new FileAlreadyExistsException(path.toString());
            }
        }
    }

    /** False: an object is there when it is whole, so that checkpoints need no rename. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return false;
    }

    /** To close the stream is to put the object: where the lines end in a fault, nothing must be put. */
    private static void put(FSDataOutputStream stream, Iterator<String> lines) throws IOException {
        try {
            while (lines.hasNext()) {
                stream.write(lines.next().getBytes(StandardCharsets.UTF_8));
                stream.write('\n');
            }
        } catch (IOException | RuntimeException | Error e) {
            stream.abort();
            throw e;
        }
        stream.close();
    }
}
