// Submits one task over AMQP: node producer.js QUEUE KEY N [DELAY_MS]
import amqp from "amqplib";

const [queue, key, n, delayMs = "0"] = process.argv.slice(2);
const connection = await amqp.connect(process.env.AMQP_URL);
const channel = await connection.createConfirmChannel();
channel.publish("duetime.in", `submit.${queue}`, Buffer.from(JSON.stringify({ n: Number(n) })), {
  contentType: "application/json",
  persistent: true,
  // The key: sent twice, it is still one task.
  messageId: key,
  headers: { "duetime-delay-ms": Number(delayMs) },
});
// Throws when the broker has not kept it.
await channel.waitForConfirms();
await connection.close();
