package peer;

import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** The line that the driver writes. */
record Order(
    String work,
    String postgresUrl,
    double seconds,
    int rate,
    int pending,
    int tasks,
    int connections,
    int batch,
    int payloadBytes,
    String arrivals) {

  static final Gson GSON =
      new GsonBuilder().setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES).create();

  /** What a worker finds in a payload. */
  record Task(long number, long dueUs, String pad) {
    Instant due() {
      return Instant.EPOCH.plus(dueUs, ChronoUnit.MICROS);
    }
  }

  /** The line that the driver reads. */
  record Answer(
      String settings, String version, int submitted, double submitSeconds, String unfair) {}

  /** A task whose JSON has the length that the order asks for. */
  Task task(long number, long dueUs) {
    int bare = GSON.toJson(new Task(number, dueUs, "")).length();
    return new Task(number, dueUs, "x".repeat(Math.max(0, payloadBytes - bare)));
  }
}
