import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.ConnectionFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;

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
            var properties = new BasicProperties.Builder()
                    .contentType("application/json")
                    .deliveryMode(PERSISTENT)
                    // The key: sent twice, it is still one task.
                    .messageId(args[1])
                    .headers(Map.of("duetime-delay-ms", delayMs))
                    .build();
            var body = "{\"n\": %d}".formatted(Integer.parseInt(args[2])).getBytes(StandardCharsets.UTF_8);
            channel.basicPublish("duetime.in", "submit." + args[0], properties, body);
            // Throws when the broker has not kept it.
            channel.waitForConfirmsOrDie(CONFIRMED_WITHIN_MS);
        }
    }
}
