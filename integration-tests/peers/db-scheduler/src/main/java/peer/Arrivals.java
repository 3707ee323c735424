package peer;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.BitSet;

/** The file of what the workers ran. */
final class Arrivals implements AutoCloseable {
  /** The number of the first task that is due in a month; it never arrives. */
  static final long FIRST_PENDING = 1_000_000_000;

  private final BufferedWriter writer;
  private final BitSet seen = new BitSet();
  private int count;

  Arrivals(String path) throws IOException {
    writer = Files.newBufferedWriter(Path.of(path));
  }

  /** Microseconds since 1970. */
  static long nowUs() {
    return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
  }

  synchronized void record(Order.Task task, long gotUs) {
    try {
      writer.write(task.number() + " " + task.dueUs() + " " + gotUs + "\n");
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    if (task.number() < FIRST_PENDING && !seen.get((int) task.number())) {
      seen.set((int) task.number());
      count++;
    }
  }

  /** How many different tasks have arrived. */
  synchronized int count() {
    return count;
  }

  /** Returns when so many have arrived, or at the deadline. */
  void await(int count, long deadlineUs) throws InterruptedException {
    while (count() < count && nowUs() < deadlineUs) {
      Thread.sleep(20);
    }
  }

  @Override
  public synchronized void close() throws IOException {
    writer.close();
  }
}
