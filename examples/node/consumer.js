// Works on the tasks of one queue until it is stopped: node consumer.js QUEUE
import { setTimeout as sleep } from "node:timers/promises";
import amqp from "amqplib";

const STEPS = 3;
const STEP_MS = 1200;

// Some steps, each of which says how far it is. An exception is a failed attempt.
async function work({ n }, progress) {
  if (n < 0) throw new Error("n must not be negative");
  for (let step = 0; step < STEPS; step++) {
    await progress(Math.floor((100 * step) / STEPS));
    await sleep(STEP_MS);
  }
  return { square: n ** 2 };
}

async function onTask(message) {
  if (!message) end("the subscription has ended");
  const { replyTo, correlationId, messageId, type, headers } = message.properties;
  const report = async (what) => {
    // Only a queue with `settle = result` wants to be told.
    if (!replyTo) return;
    channel.publish("duetime.in", `result.${type}`, Buffer.from(JSON.stringify(what)), {
      contentType: "application/json",
      persistent: true,
      mandatory: true,
      correlationId,
      // Which attempt it is about, and the proof that it was ours.
      headers: { "duetime-attempt": headers["duetime-attempt"], "duetime-receipt": headers["duetime-receipt"] },
    });
    await channel.waitForConfirms();
  };
  let outcome;
  try {
    // Each report of `running` moves the deadline.
    const result = await work(JSON.parse(message.content), (progress) => report({ status: "running", progress }));
    outcome = { status: "succeeded", result };
  } catch (error) {
    if (!replyTo) return channel.nack(message, false, false);
    outcome = { status: "failed", status_msg: error.message };
  }
  // Outside of `try`: when this report fails, the process ends without an ack, and the message comes again.
  await report(outcome);
  channel.ack(message);
  console.log(messageId);
}

function end(why) {
  console.error(why);
  process.exit(1);
}

const connection = await amqp.connect(process.env.AMQP_URL);
connection.on("close", () => end("the connection is lost"));
const channel = await connection.createConfirmChannel();
// The broker returns a report that no queue takes, before it confirms it. So the task is not acked.
channel.on("return", (message) => end(`no queue takes a report: ${message.fields.replyText}`));
await channel.prefetch(1);
await channel.consume(process.argv[2], onTask);
