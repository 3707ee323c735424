// Runs the works of the peers' protocol on pg-boss, a job queue on PostgreSQL.

import { PgBoss } from 'pg-boss';

import { run } from './works.js';

const QUEUE = 'arrivals';
const PROCESSES = 2;
const WORKERS = 10;
/** pg-boss allows no shorter interval. Workers that start at different times share it out. */
const POLL_SECONDS = 0.5;
const FETCH = 500;
const POOL = 12;

const start = async (order, max) => {
  const boss = new PgBoss({ connectionString: order.postgres_url, max, useListenNotify: order.work === 'throughput' });
  boss.on('error', (error) => console.error(error.message));
  await boss.start();
  return boss;
};

const startAfter = (task) => (task.due_us / 1000 > Date.now() ? new Date(task.due_us / 1000) : undefined);

await run({
  name: 'pg-boss',
  processes: PROCESSES,

  async produce(order) {
    const boss = await start(order, order.work === 'submit' ? order.connections : POOL);
    // A table of its own, as the documentation advises for a large queue.
    await boss.createQueue(QUEUE, { partition: true, notify: order.work === 'throughput' });
    return {
      submit: (tasks) => boss.insert(QUEUE, tasks.map((task) => ({ data: task, startAfter: startAfter(task) }))),
      submitOne: (task) => boss.send(QUEUE, task, { startAfter: startAfter(task) }),
      close: () => boss.stop({ graceful: false }),
    };
  },

  async work(order, record, nowUs) {
    const boss = await start(order, POOL);
    const handle = async (jobs) => {
      const gotUs = nowUs();
      for (const job of jobs) record(job.data, gotUs);
    };
    const options = {
      batchSize: FETCH,
      pollingIntervalSeconds: POLL_SECONDS,
      notifyPollingIntervalSeconds: POLL_SECONDS,
      burstWhenBatchFull: true,
    };
    for (let worker = 0; worker < WORKERS; worker += 1) {
      await boss.work(QUEUE, options, handle);
      await new Promise((resolve) => setTimeout(resolve, (POLL_SECONDS * 1000) / WORKERS));
    }
    return { close: () => boss.stop({ graceful: true, timeout: 10_000 }) };
  },

  settings: (order) =>
    `${PROCESSES} processes of ${WORKERS} workers, pollingIntervalSeconds ${POLL_SECONDS} (its least; the workers take turns), batchSize ${FETCH}, ` +
    `burstWhenBatchFull, partition, LISTEN/NOTIFY for tasks without delay (it notifies of no others), ` +
    `insert of ${order.batch}, pool ${order.work === 'submit' ? order.connections : POOL} a process`,
  unfair: 'to it: it keeps finished jobs for a week, where others delete them',
});
