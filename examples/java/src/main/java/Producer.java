import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.ConnectionFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

/** Submits one task over AMQP: Producer QUEUE KEY N [DELAY_MS]. */
public final class Producer {
    private static final int PERSISTENT = 2;
    private static final long CONFIRMED_WITHIN_MS = 10_000;

    public static void main(String[] args) throws Exception {
        var factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        long delayMs = args.length > 3 ? Long.parseLong(args[3]) : 0;
        try (var connection = factory.newConnection(); var channel = connection.createChannel()) {
            channel.confirmSelect();
            // The broker returns a message that no queue takes, before it confirms it.
            var returned = new AtomicReference<String>();
            channel.addReturnListener(message -> returned.set(message.getReplyText()));
            var properties = new BasicProperties.Builder()
                    .contentType("application/json")
                    .deliveryMode(PERSISTENT)
                    // The key: sent twice, it is still one task.
                    .messageId(args[1])
                    .headers(Map.of("duetime-delay-ms", delayMs))
                    .build();
            var body = "{\"n\": %d}".formatted(Integer.parseInt(args[2])).getBytes(StandardCharsets.UTF_8);
            channel.basicPublish("duetime.in", "submit." + args[0], true, properties, body);
            // Throws when the broker has not kept it.
            channel.waitForConfirmsOrDie(CONFIRMED_WITHIN_MS);
            if (returned.get() != null) {
                throw new IllegalStateException("no queue takes it: " + returned.get());
            }
        }
    }
}
