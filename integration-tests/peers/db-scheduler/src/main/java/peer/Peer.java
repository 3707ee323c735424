package peer;

import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.SchedulerClient;
import com.github.kagkarlsson.scheduler.serializer.GsonSerializer;
import com.github.kagkarlsson.scheduler.task.SchedulableInstance;
import com.github.kagkarlsson.scheduler.task.TaskDescriptor;
import com.github.kagkarlsson.scheduler.task.helper.OneTimeTask;
import com.github.kagkarlsson.scheduler.task.helper.Tasks;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** db-scheduler at the settings that its documentation recommends for throughput. */
final class Peer implements AutoCloseable {
  private static final TaskDescriptor<Order.Task> ARRIVAL =
      TaskDescriptor.of("arrival", Order.Task.class);

  /** One of the configurations of its own benchmark. */
  private static final int THREADS = 50;

  /** "For high throughput (i.e. keep threads busy), set to for example 1.0, 4.0." */
  private static final double LOWER_LIMIT = 1.0;

  private static final double UPPER_LIMIT = 4.0;

  /** The precision "is depending on the pollingInterval"; 10 s unless it is set. */
  private static final Duration POLLING = Duration.ofMillis(25);

  private static final int POOL = THREADS + 10;

  private final HikariDataSource dataSource = new HikariDataSource();
  private final SchedulerClient client;
  private final Order order;
  private Scheduler scheduler;

  Peer(Order order) throws SQLException, IOException {
    this.order = order;
    URI url = URI.create(order.postgresUrl());
    String[] user = (url.getUserInfo() + ":").split(":", -1);
    dataSource.setJdbcUrl(
        "jdbc:postgresql://%s:%d%s?reWriteBatchedInserts=true"
            .formatted(url.getHost(), url.getPort(), url.getPath()));
    dataSource.setUsername(user[0]);
    dataSource.setPassword(user[1]);
    dataSource.setMaximumPoolSize(pool());
    createTable();
    client =
        SchedulerClient.Builder.create(dataSource, Tasks.oneTime(ARRIVAL).execute((inst, ctx) -> {}))
            .serializer(new GsonSerializer())
            .build();
  }

  private int pool() {
    return order.work().equals("submit") ? order.connections() : POOL;
  }

  private void createTable() throws SQLException, IOException {
    try (var sql = Peer.class.getResourceAsStream("/scheduled_tasks.sql");
        var connection = dataSource.getConnection();
        var statement = connection.createStatement()) {
      statement.execute(new String(sql.readAllBytes(), StandardCharsets.UTF_8));
    }
  }

  private static SchedulableInstance<Order.Task> instance(Order.Task task) {
    return ARRIVAL.instance(Long.toString(task.number())).data(task).scheduledTo(task.due());
  }

  void submit(List<Order.Task> tasks) {
    List<SchedulableInstance<?>> instances = new ArrayList<>();
    tasks.forEach(task -> instances.add(instance(task)));
    client.scheduleBatch(instances);
  }

  void submitOne(Order.Task task) {
    client.scheduleIfNotExists(instance(task));
  }

  void start(Arrivals arrivals) {
    OneTimeTask<Order.Task> task =
        Tasks.oneTime(ARRIVAL)
            .execute(
                (inst, ctx) -> {
                  long gotUs = Arrivals.nowUs();
                  arrivals.record(inst.getData(), gotUs);
                });
    scheduler =
        Scheduler.create(dataSource, task)
            .serializer(new GsonSerializer())
            .threads(THREADS)
            .pollUsingLockAndFetch(LOWER_LIMIT, UPPER_LIMIT)
            .pollingInterval(POLLING)
            .build();
    scheduler.start();
  }

  String settings() {
    return ("%d threads in one JVM, pollUsingLockAndFetch(%s, %s), pollingInterval %d ms, "
            + "scheduleBatch of %d with reWriteBatchedInserts, GsonSerializer, no priorities, "
            + "Hikari pool %d")
        .formatted(THREADS, LOWER_LIMIT, UPPER_LIMIT, POLLING.toMillis(), order.batch(), pool());
  }

  /** The name of the library's archive holds its version. */
  static String version() {
    var archive = Scheduler.class.getProtectionDomain().getCodeSource().getLocation();
    String name = Path.of(archive.getPath()).getFileName().toString().replace(".jar", "");
    return name + ", Java " + System.getProperty("java.version");
  }

  @Override
  public void close() {
    if (scheduler != null) {
      scheduler.stop();
    }
    dataSource.close();
  }
}
