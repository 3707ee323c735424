// Runs the works of the peers' protocol on BullMQ, a job queue on Redis.

import { Queue, Worker } from 'bullmq';

import { run } from './works.js';

const QUEUE = 'arrivals';
/** The documentation names 100 to 300 for a worker, and several workers in processes of their own. */
const CONCURRENCY = 200;
const PROCESSES = 2;

const connection = (order) => {
  const { hostname, port, username, password, pathname } = new URL(order.redis_url);
  return { host: hostname, port: Number(port || 6379), username, password, db: Number(pathname.slice(1) || 0) };
};

/** The delay counts from `timestamp`, so that both are taken from one reading of the clock. */
const options = (task) => {
  const timestamp = Date.now();
  return { timestamp, delay: Math.max(0, task.due_us / 1000 - timestamp) };
};

await run({
  name: 'bullmq',
  processes: PROCESSES,

  async produce(order) {
    const clients = order.work === 'submit' ? order.connections : 1;
    const queues = Array.from({ length: clients }, () => new Queue(QUEUE, { connection: connection(order) }));
    await Promise.all(queues.map((queue) => queue.waitUntilReady()));
    return {
      submit: (tasks) => queues[0].addBulk(tasks.map((task) => ({ name: 'arrival', data: task, opts: options(task) }))),
      submitOne: (task, client) => queues[client].add('arrival', task, options(task)),
      close: () => Promise.all(queues.map((queue) => queue.close())),
    };
  },

  async work(order, record, nowUs) {
    const handle = async (job) => {
      const gotUs = nowUs();
      record(job.data, gotUs);
    };
    const worker = new Worker(QUEUE, handle, { connection: connection(order), concurrency: CONCURRENCY, removeOnComplete: { count: 0 } });
    worker.on('error', (error) => console.error(error.message));
    await worker.waitUntilReady();
    return worker;
  },

  settings: (order) =>
    `${PROCESSES} processes with a worker each, concurrency ${CONCURRENCY}, removeOnComplete at once, addBulk of ${order.batch} from one producer process, ` +
    `4 bulks at a time, one Redis connection a client`,
  unfair: 'to others: Redis answers from memory, before anything is on disk',
});
