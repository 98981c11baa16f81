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

import io.delta.storage.CloseableIterator;
import io.delta.storage.HadoopFileSystemLogStore;
import io.delta.storage.LineCloseableIterator;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;

/**
 * Delta's log on a local path, where of several processes that write one version exactly one wins.
 *
 * <p>Delta's own HDFSLogStore looks whether the version exists and then renames onto it, under a
 * lock that other processes do not see. link(2) does both in one step in the kernel, and delta-rs
 * publishes its commits by it too; so the two exclude each other. See docs/adr/0002-put-if-absent.md.
 */
public final class HardLinkLogStore extends HadoopFileSystemLogStore {

    public HardLinkLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    /**
     * Publishes {@code actions} at {@code path}, whole or not at all, and on disk on return.
     *
     * <p>A process that dies on the way leaves at most a temporary file that no reader looks at. An
     * IOException after the link (the directory could not be synced) means what it means everywhere:
     * the outcome is unknown to the caller.
     *
     * @throws FileAlreadyExistsException if another writer has this version and overwrite is false
     */
    @Override
    public void write(
            org.apache.hadoop.fs.Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        Path target = local(path);
        Path directory = target.getParent();
        if (!Files.isDirectory(directory)) {
            throw new FileNotFoundException("No such file or directory: " + directory);
        }
        Path temporary = local(createTempPath(path));
        try {
            writeSynced(temporary, actions);
            // A checksum that some earlier writer left for this name would make Hadoop's local file
            // system refuse what is written now. Without one, it reads unchecked.
            Files.deleteIfExists(directory.resolve("." + target.getFileName() + ".crc"));
            if (overwrite) {
                Files.move(temporary, target, StandardCopyOption.ATOMIC_MOVE);
            } else {
                link(temporary, target);
            }
        } finally {
            discard(temporary);
        }
        syncDirectory(directory);
    }

    /**
     * Reads past Hadoop's checksum files: delta-rs replaces _last_checkpoint without knowing of the
     * checksum that another Spark may have left beside it, and it would then never be read again.
     */
    @Override
    public CloseableIterator<String> read(org.apache.hadoop.fs.Path path, Configuration hadoopConf)
            throws IOException {
        // Not Files.newInputStream: callers wait for FileNotFoundException, not NoSuchFileException.
        return new LineCloseableIterator(
                new InputStreamReader(new FileInputStream(local(path).toFile()), StandardCharsets.UTF_8));
    }

    /**
     * True, though no write of this store is ever seen in part: Delta writes checkpoints past the
     * store, and asks here whether the file system shows a file while it is being written. It does;
     * so they must go to another name and be renamed.
     */
    @Override
    public Boolean isPartialWriteVisible(org.apache.hadoop.fs.Path path, Configuration hadoopConf) {
        return true;
    }

    private static Path local(org.apache.hadoop.fs.Path path) throws IOException {
        String scheme = path.toUri().getScheme();
        if (scheme != null && !scheme.equals("file")) {
            throw new IOException("HardLinkLogStore is for local paths; set spark.delta.logStore." + scheme
                    + ".impl to the log store of " + path);
        }
        return new File(path.toUri().getPath()).toPath();
    }

    private static void writeSynced(Path temporary, Iterator<String> actions) throws IOException {
        try (FileOutputStream file = new FileOutputStream(temporary.toFile())) {
            OutputStream lines = new BufferedOutputStream(file);
            while (actions.hasNext()) {
                lines.write(actions.next().getBytes(StandardCharsets.UTF_8));
                lines.write('\n');
            }
            lines.flush();
            file.getFD().sync();
        }
    }

    private static void link(Path temporary, Path target) throws IOException {
        try {
            Files.createLink(target, temporary);
        } catch (FileAlreadyExistsException e) {
            // NFS repeats a call whose answer was lost, and then finds the link that it has made.
            if (!Files.isSameFile(temporary, target)) {
                throw new FileAlreadyExistsException(target.toString());
            }
        }
    }

    private static void discard(Path temporary) {
        try {
            Files.deleteIfExists(temporary);
        } catch (IOException e) {
            // The version is decided, and an orphan harms nobody: it must not turn success into failure.
        }
    }

    /** Makes the names in a directory survive a power loss; a thread's interrupt waits until it has. */
    private static void syncDirectory(Path directory) throws IOException {
        boolean interrupted = Thread.interrupted();
        try {
            while (true) {
                try (FileChannel channel = FileChannel.open(directory, StandardOpenOption.READ)) {
                    channel.force(true);
                    return;
                } catch (ClosedByInterruptException e) {
                    // The version is published: to report a failure now would be wrong.
                    interrupted |= Thread.interrupted();
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
