package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.LongStream;

/** Runs the works of the peers' protocol on db-scheduler, which keeps tasks in PostgreSQL. */
public final class Main {
  private static final long SECOND_US = 1_000_000;
  private static final long HOUR_US = 3_600 * SECOND_US;
  private static final long MONTH_US = 30 * 24 * HOUR_US;

  /** The time between a task's submission and its due instant in {@code late}. */
  private static final long AHEAD_US = 10 * SECOND_US;

  /** How often {@code late} submits what became near. */
  private static final long TICK_MS = 50;

  private static final int SUBMITTERS = 4;

  /** Bounds {@code throughput}: submitters wait for the workers beyond it. */
  private static final int BACKLOG = 10_000;

  /** The rate of submission, in tasks a second, that {@code burst} allows for. */
  private static final long SLOWEST = 2_000;

  private final Order order;
  private final Peer peer;
  private final Arrivals arrivals;
  private int submitted;
  private long spentUs;

  private Main(Order order, Peer peer, Arrivals arrivals) {
    this.order = order;
    this.peer = peer;
    this.arrivals = arrivals;
  }

  public static void main(String[] arguments) throws Exception {
    String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
    Order order = Order.GSON.fromJson(line, Order.class);
    Order.Answer answer;
    try (Arrivals arrivals = new Arrivals(order.arrivals());
        Peer peer = new Peer(order)) {
      answer = new Main(order, peer, arrivals).run();
    }
    System.out.println(Order.GSON.toJson(answer));
  }

  private Order.Answer run() throws Exception {
    switch (order.work()) {
      case "late" -> late();
      case "burst" -> burst();
      case "throughput" -> throughput();
      case "submit" -> submit();
      default -> throw new IllegalArgumentException("no such work: " + order.work());
    }
    return new Order.Answer(peer.settings(), Peer.version(), submitted, spentUs / 1e6, "");
  }

  private void late() throws Exception {
    fill(Arrivals.FIRST_PENDING, order.pending(), Arrivals.nowUs() + MONTH_US);
    peer.start(arrivals);
    submitted = (int) (order.rate() * order.seconds());
    long startUs = Arrivals.nowUs();
    for (int next = 0; next < submitted; Thread.sleep(TICK_MS)) {
      List<Order.Task> near = new ArrayList<>();
      for (; next < submitted && due(startUs, next) <= Arrivals.nowUs() + AHEAD_US; next++) {
        near.add(order.task(next, due(startUs, next)));
      }
      peer.submit(near);
    }
    spentUs = Arrivals.nowUs() - startUs;
    arrivals.await(submitted, due(startUs, submitted) + 30 * SECOND_US);
  }

  private long due(long startUs, int number) {
    return startUs + AHEAD_US + number * SECOND_US / order.rate();
  }

  private void burst() throws Exception {
    peer.start(arrivals);
    submitted = order.tasks();
    long startUs = Arrivals.nowUs();
    long dueUs = startUs + AHEAD_US + submitted * SECOND_US / SLOWEST;
    fill(0, submitted, dueUs);
    spentUs = Arrivals.nowUs() - startUs;
    if (dueUs - Arrivals.nowUs() < 3 * SECOND_US) {
      throw new IllegalStateException("submitting took until after the tasks were due");
    }
    arrivals.await(submitted, dueUs + 120 * SECOND_US);
  }

  /** Submits tasks with consecutive numbers that are due at one instant. */
  private void fill(long first, int count, long dueUs) throws Exception {
    AtomicInteger next = new AtomicInteger();
    concurrently(
        SUBMITTERS,
        () -> {
          for (int from = next.getAndAdd(order.batch());
              from < count;
              from = next.getAndAdd(order.batch())) {
            int until = Math.min(count, from + order.batch());
            peer.submit(tasks(first + from, first + until, dueUs));
          }
        });
    System.err.println(count + " tasks submitted");
  }

  private List<Order.Task> tasks(long from, long until, long dueUs) {
    return LongStream.range(from, until).mapToObj(number -> order.task(number, dueUs)).toList();
  }

  private void throughput() throws Exception {
    peer.start(arrivals);
    AtomicInteger next = new AtomicInteger();
    long startUs = Arrivals.nowUs();
    long endUs = startUs + (long) (order.seconds() * SECOND_US);
    concurrently(
        SUBMITTERS,
        () -> {
          while (Arrivals.nowUs() < endUs) {
            if (next.get() - arrivals.count() > BACKLOG) {
              Thread.sleep(1);
              continue;
            }
            int from = next.getAndAdd(order.batch());
            peer.submit(tasks(from, from + order.batch(), Arrivals.nowUs()));
          }
        });
    spentUs = Arrivals.nowUs() - startUs;
    submitted = next.get();
    arrivals.await(submitted, Arrivals.nowUs() + 120 * SECOND_US);
  }

  private void submit() throws Exception {
    AtomicInteger next = new AtomicInteger();
    long startUs = Arrivals.nowUs();
    long endUs = startUs + (long) (order.seconds() * SECOND_US);
    concurrently(
        order.connections(),
        () -> {
          while (Arrivals.nowUs() < endUs) {
            peer.submitOne(order.task(next.getAndIncrement(), Arrivals.nowUs() + HOUR_US));
          }
        });
    spentUs = Arrivals.nowUs() - startUs;
    submitted = next.get();
  }

  private interface Step {
    void run() throws Exception;
  }

  /** Runs a step in so many threads; the first failure is the outcome. */
  private static void concurrently(int count, Step step) throws Exception {
    var threads = Executors.newFixedThreadPool(count);
    List<Future<?>> running = new ArrayList<>();
    for (int index = 0; index < count; index++) {
      running.add(
          threads.submit(
              () -> {
                step.run();
                return null;
              }));
    }
    threads.shutdown();
    for (Future<?> future : running) {
      future.get();
    }
  }
}
