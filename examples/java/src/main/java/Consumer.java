import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Works on the tasks of one queue until it is stopped: Consumer QUEUE. */
public final class Consumer {
    private static final int PERSISTENT = 2;
    private static final long CONFIRMED_WITHIN_MS = 10_000;
    private static final int STEPS = 3;
    private static final long STEP_MS = 1_200;
    private static final Gson GSON = new Gson();

    interface Progress {
        void is(int percent) throws Exception;
    }

    /** Some steps, each of which says how far it is. An exception is a failed attempt. */
    static Object work(JsonObject payload, Progress progress) throws Exception {
        int n = payload.get("n").getAsInt();
        if (n < 0) {
            throw new IllegalArgumentException("n must not be negative");
        }
        for (int step = 0; step < STEPS; step++) {
            progress.is(100 * step / STEPS);
            Thread.sleep(STEP_MS);
        }
        return Map.of("square", n * n);
    }

    /** Only a queue with `settle = result` wants to be told. */
    static void report(Channel channel, Delivery task, Map<String, Object> what) throws Exception {
        var of = task.getProperties();
        if (of.getReplyTo() == null) {
            return;
        }
        var properties = new BasicProperties.Builder()
                .contentType("application/json")
                .deliveryMode(PERSISTENT)
                .correlationId(of.getCorrelationId())
                // Which attempt it is about, and the proof that it was ours.
                .headers(Map.of(
                        "duetime-attempt", of.getHeaders().get("duetime-attempt"),
                        "duetime-receipt", of.getHeaders().get("duetime-receipt")))
                .build();
        var body = GSON.toJson(what).getBytes(StandardCharsets.UTF_8);
        channel.basicPublish("duetime.in", "result." + of.getType(), true, properties, body);
        channel.waitForConfirmsOrDie(CONFIRMED_WITHIN_MS);
    }

    static void handle(Channel channel, Delivery task) throws Exception {
        long tag = task.getEnvelope().getDeliveryTag();
        try {
            var payload = GSON.fromJson(new String(task.getBody(), StandardCharsets.UTF_8), JsonObject.class);
            // Each report of `running` moves the deadline.
            var result = work(payload, percent ->
                    report(channel, task, Map.of("status", "running", "progress", percent)));
            report(channel, task, Map.of("status", "succeeded", "result", result));
        } catch (RuntimeException error) {
            // Whatever the payload was, the attempt has failed. Without a connection this report fails too.
            report(channel, task, Map.of("status", "failed", "status_msg", String.valueOf(error.getMessage())));
            if (task.getProperties().getReplyTo() == null) {
                channel.basicReject(tag, false);
                return;
            }
        }
        channel.basicAck(tag, false);
        System.out.println(task.getProperties().getMessageId());
    }

    public static void main(String[] args) throws Exception {
        var factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        var channel = factory.newConnection().createChannel();
        channel.confirmSelect();
        // The broker returns a report that no queue takes, before it confirms it. So the task is not acked.
        channel.addReturnListener(message -> {
            System.err.println("no queue takes a report: " + message.getReplyText());
            System.exit(1);
        });
        channel.basicQos(1);
        channel.basicConsume(args[0], false, (tag, task) -> {
            try {
                handle(channel, task);
            } catch (Exception error) {
                // Not answered: it comes again, to a consumer that can be reached.
                error.printStackTrace();
                System.exit(1);
            }
        }, tag -> System.exit(1));
    }
}
