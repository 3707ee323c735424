// Submits one task over AMQP: node producer.js QUEUE KEY N [DELAY_MS]
import amqp from "amqplib";

const [queue, key, n, delayMs = "0"] = process.argv.slice(2);
const connection = await amqp.connect(process.env.AMQP_URL);
const channel = await connection.createConfirmChannel();
// The broker returns a message that no queue takes, before it confirms it.
let returned;
channel.once("return", (message) => (returned = message));
channel.publish("duetime.in", `submit.${queue}`, Buffer.from(JSON.stringify({ n: Number(n) })), {
  contentType: "application/json",
  persistent: true,
  mandatory: true,
  // The key: sent twice, it is still one task.
  messageId: key,
  headers: { "duetime-delay-ms": Number(delayMs) },
});
// Throws when the broker has not kept it.
await channel.waitForConfirms();
if (returned) throw new Error(`no queue takes it: ${returned.fields.replyText}`);
await connection.close();
