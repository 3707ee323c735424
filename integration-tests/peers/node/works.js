// The works of the peers' protocol, over any scheduler that can be used from Node. The parent submits; child processes run the workers.

import { fork } from 'node:child_process';
import { on, once } from 'node:events';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const MONTH_MS = 30 * 24 * 3600 * 1000;
const HOUR_MS = 3600 * 1000;
/** The number of the first task that is due in a month; it never arrives. */
const FIRST_PENDING = 1_000_000_000;
/** The time between a task's submission and its due instant in `late`. */
const AHEAD_MS = 10_000;
/** How often `late` submits what became near. */
const TICK_MS = 50;
/** How many batches are on their way at once. */
const SUBMITTERS = 4;
/** Bounds `throughput`: submitters wait for the workers beyond it. */
const BACKLOG = 10_000;
/** The rate of submission, in tasks a second, that `burst` allows for. */
const SLOWEST = 2_000;
const FLUSH_BYTES = 1 << 20;

/** Microseconds since 1970. The fine clock may lag the system's by some; never show an instant before the system's millisecond. */
const nowUs = () => Math.round(Math.max(Date.now(), performance.timeOrigin + performance.now()) * 1000);

const makeTask = (order, number, dueMs) => {
  const task = { number, due_us: Math.round(dueMs) * 1000, pad: '' };
  task.pad = 'x'.repeat(Math.max(0, order.payload_bytes - JSON.stringify(task).length));
  return task;
};

/** Starts child processes with workers; counts what arrives there. */
class Workers {
  #children = [];
  #counts = [];

  async start(processes, order) {
    for (let index = 0; index < processes; index += 1) {
      const child = fork(process.argv[1], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
      child.send({ order: { ...order, arrivals: `${order.arrivals}.${index + 1}` } });
      child.on('exit', (code) => code && process.exit(1));
      await once(child, 'message');
      child.on('message', (count) => {
        this.#counts[index] = count;
      });
      this.#children.push(child);
    }
  }

  get arrived() {
    return this.#counts.reduce((sum, count) => sum + count, 0);
  }

  async until(count, deadlineMs) {
    while (this.arrived < count && Date.now() < deadlineMs) await sleep(20);
  }

  async stop() {
    await Promise.all(
      this.#children.map((child) => {
        child.send('stop');
        return once(child, 'exit');
      }),
    );
  }
}

async function work(peer) {
  const { order } = (await once(process, 'message'))[0];
  const file = openSync(order.arrivals, 'w');
  const seen = new Set();
  let lines = '';
  const flush = () => {
    writeSync(file, lines);
    lines = '';
  };
  const record = (task, gotUs) => {
    lines += `${task.number} ${task.due_us} ${gotUs}\n`;
    if (lines.length > FLUSH_BYTES) flush();
    if (task.number < FIRST_PENDING) seen.add(task.number);
  };
  const workers = await peer.work(order, record, nowUs);
  const report = setInterval(() => process.send(seen.size), 20);
  process.send(0);
  for await (const [message] of on(process, 'message')) {
    if (message === 'stop') break;
  }
  clearInterval(report);
  await workers.close();
  flush();
  closeSync(file);
  process.exit(0);
}

/** Submits tasks with consecutive numbers that are due at one instant. */
async function fill(order, producer, first, count, dueMs) {
  let next = 0;
  await concurrently(SUBMITTERS, async () => {
    while (next < count) {
      const from = next;
      next = Math.min(count, next + order.batch);
      await producer.submit(Array.from({ length: next - from }, (_, index) => makeTask(order, first + from + index, dueMs)));
    }
  });
  console.error(`${count} tasks submitted`);
}

const concurrently = (count, run) => Promise.all(Array.from({ length: count }, (_, index) => run(index)));

const works = {
  async late(order, peer, producer, workers) {
    await fill(order, producer, FIRST_PENDING, order.pending, Date.now() + MONTH_MS);
    await workers.start(peer.processes, order);
    const total = Math.floor(order.rate * order.seconds);
    const start = Date.now();
    const due = (number) => start + AHEAD_MS + (number / order.rate) * 1000;
    for (let next = 0; next < total; await sleep(TICK_MS)) {
      const near = [];
      for (; next < total && due(next) <= Date.now() + AHEAD_MS; next += 1) near.push(makeTask(order, next, due(next)));
      if (near.length > 0) await producer.submit(near);
    }
    const seconds = (Date.now() - start) / 1000;
    await workers.until(total, due(total) + 30_000);
    return { submitted: total, submit_seconds: seconds };
  },

  async burst(order, peer, producer, workers) {
    await workers.start(peer.processes, order);
    const start = Date.now();
    const due = start + AHEAD_MS + (order.tasks / SLOWEST) * 1000;
    await fill(order, producer, 0, order.tasks, due);
    const seconds = (Date.now() - start) / 1000;
    if (due - Date.now() < 3000) throw new Error(`the submission of ${order.tasks} tasks took ${seconds} s, until after they were due`);
    await workers.until(order.tasks, due + 120_000);
    return { submitted: order.tasks, submit_seconds: seconds };
  },

  async throughput(order, peer, producer, workers) {
    await workers.start(peer.processes, order);
    const start = Date.now();
    let submitted = 0;
    await concurrently(SUBMITTERS, async () => {
      while (Date.now() - start < order.seconds * 1000) {
        if (submitted - workers.arrived > BACKLOG) {
          await sleep(1);
          continue;
        }
        const from = submitted;
        submitted += order.batch;
        await producer.submit(Array.from({ length: order.batch }, (_, index) => makeTask(order, from + index, Date.now())));
      }
    });
    const seconds = (Date.now() - start) / 1000;
    await workers.until(submitted, Date.now() + 120_000);
    return { submitted, submit_seconds: seconds };
  },

  async submit(order, peer, producer) {
    const start = Date.now();
    let submitted = 0;
    await concurrently(order.connections, async (client) => {
      while (Date.now() - start < order.seconds * 1000) {
        await producer.submitOne(makeTask(order, submitted, Date.now() + HOUR_MS), client);
        submitted += 1;
      }
    });
    return { submitted, submit_seconds: (Date.now() - start) / 1000 };
  },
};

async function drive(peer) {
  const order = JSON.parse(readFileSync(0, 'utf8'));
  const producer = await peer.produce(order);
  const workers = new Workers();
  const answer = await works[order.work](order, peer, producer, workers);
  await workers.stop();
  await producer.close();
  const { version } = JSON.parse(readFileSync(`node_modules/${peer.name}/package.json`, 'utf8'));
  const own = { settings: peer.settings(order), version: `${peer.name} ${version}, node ${process.version}`, unfair: peer.unfair };
  console.log(JSON.stringify({ ...own, ...answer }));
  process.exit(0);
}

/**
 * Runs what the driver orders. A peer has a `name`, the number of `processes` for its workers, `produce(order)` with `submit(tasks)`,
 * `submitOne(task, client)` and `close()`, `work(order, record, nowUs)` with `close()`, `settings(order)` and `unfair`.
 */
export async function run(peer) {
  await (process.send ? work(peer) : drive(peer));
}
