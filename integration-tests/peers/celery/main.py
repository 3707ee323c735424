"""Runs the works of the peers' protocol on Celery with Redis as its broker: ETA for tasks that are due later."""

import glob
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta, timezone

ORDER = json.loads(sys.stdin.readline()) if __name__ == "__main__" else {}

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
MONTH_US = 30 * 24 * HOUR_US
FIRST_PENDING = 1_000_000_000
# The time between a task's submission and its due instant in `late`.
AHEAD_US = 10 * SECOND_US
# How often `late` submits what became near.
TICK = 0.05
# Celery sends one task after the other. Processes, not threads, because of Python's global lock.
SUBMITTERS = 2
# Bounds `throughput`: submitters wait for the workers beyond it.
BACKLOG = 10_000
# The rate of submission, in tasks a second, that `burst` allows for.
SLOWEST = 500
WORKER_PROCESSES = os.cpu_count()
UNFAIR = (
    "to it: its documentation advises against ETA for a distant future, because a worker holds all such tasks in memory, "
    "unacknowledged, and Redis delivers them again each hour (visibility_timeout); it names database-backed periodic tasks instead. "
    "To others: Redis answers from memory, before anything is on disk"
)
EPOCH = datetime.fromtimestamp(0, timezone.utc)


def now_us():
    return time.time_ns() // 1000


def get_ready(barrier):
    """Ends when each submitter has loaded Celery, so that no figure holds the time that this takes."""
    import tasks  # noqa: F401

    barrier.wait()


def send(numbers, due_us, payload_bytes):
    """Submits tasks; `due_us` has an instant for each, or one for all, or None for now. Runs in a process of a submitter."""
    from tasks import app, arrive

    with app.producer_pool.acquire(block=True) as producer:
        for index, number in enumerate(numbers):
            due = due_us[index] if isinstance(due_us, list) else due_us
            bare = len(json.dumps([number, due or now_us(), ""]))
            args = (number, due or now_us(), "x" * max(0, payload_bytes - bare))
            eta = EPOCH + timedelta(microseconds=due) if due else None
            arrive.apply_async(args, eta=eta, producer=producer)
    return len(numbers)


def clients(count, seconds, payload_bytes, first):
    """So many threads, each with a connection of its own, submit one task after the other."""
    sent = [0] * count
    end = time.monotonic() + seconds

    def client(index):
        while time.monotonic() < end:
            sent[index] += send([first + index], now_us() + HOUR_US, payload_bytes)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)


class Workers:
    """A Celery worker with a process for each core, and what has arrived there."""

    def __init__(self):
        self.counts = {}
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool=prefork", f"--concurrency={WORKER_PROCESSES}"]
        command += ["--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair"]
        self.process = subprocess.Popen(command, stdout=sys.stderr)
        from tasks import app

        while not app.control.inspect(timeout=1).ping():
            if self.process.poll() is not None:
                sys.exit("the worker has ended")

    def count(self):
        """Lines in the files of arrivals; each is read once."""
        for path in glob.glob(ORDER["arrivals"] + ".*"):
            lines, offset = self.counts.get(path, (0, 0))
            with open(path, "rb") as file:
                file.seek(offset)
                text = file.read()
            self.counts[path] = (lines + text.count(b"\n"), offset + len(text))
        return sum(lines for lines, _ in self.counts.values())

    def wait(self, count, deadline_us):
        while self.count() < count and now_us() < deadline_us:
            time.sleep(0.05)

    def stop(self):
        """Tasks that are due in a month would hold a warm shutdown up; all that counts has been written."""
        self.process.send_signal(signal.SIGQUIT)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def fill(pool, first, count, due_us):
    """Submits tasks with consecutive numbers that are due at one instant."""
    batch, size = ORDER["batch"], ORDER["payload_bytes"]
    starts = range(first, first + count, batch)
    list(pool.map(send, [range(at, min(at + batch, first + count)) for at in starts], [due_us] * len(starts), [size] * len(starts)))
    print(f"{count} tasks submitted", file=sys.stderr)


def late(pool):
    fill(pool, FIRST_PENDING, ORDER["pending"], now_us() + MONTH_US)
    workers = Workers()
    total = int(ORDER["rate"] * ORDER["seconds"])
    start, sent, following = now_us(), [], 0
    dues = [start + AHEAD_US + number * SECOND_US // ORDER["rate"] for number in range(total)]
    while following < total:
        near = []
        while following < total and dues[following] <= now_us() + AHEAD_US:
            near.append(following)
            following += 1
        for part in (near[share::SUBMITTERS] for share in range(SUBMITTERS)):
            sent.append(pool.submit(send, part, [dues[number] for number in part], ORDER["payload_bytes"]))
        time.sleep(TICK)
    for one in sent:
        one.result()
    spent = now_us() - start
    workers.wait(total, dues[-1] + 30 * SECOND_US)
    return workers, total, spent


def burst(pool):
    workers = Workers()
    start, tasks = now_us(), ORDER["tasks"]
    due_us = start + AHEAD_US + tasks * SECOND_US // SLOWEST
    fill(pool, 0, tasks, due_us)
    spent = now_us() - start
    if due_us - now_us() < 3 * SECOND_US:
        sys.exit("the submission took until after the tasks were due")
    workers.wait(tasks, due_us + 120 * SECOND_US)
    return workers, tasks, spent


def throughput(pool):
    workers = Workers()
    start, submitted, sent = now_us(), 0, []
    while now_us() - start < ORDER["seconds"] * SECOND_US:
        sent = [one for one in sent if not one.done() or one.result() is None]
        if len(sent) >= SUBMITTERS * 2 or submitted - workers.count() > BACKLOG:
            time.sleep(0.005)
            continue
        numbers = range(submitted, submitted + ORDER["batch"] // 10)
        sent.append(pool.submit(send, numbers, None, ORDER["payload_bytes"]))
        submitted += len(numbers)
    for one in sent:
        one.result()
    spent = now_us() - start
    workers.wait(submitted, now_us() + 120 * SECOND_US)
    return workers, submitted, spent


def submit(pool):
    start, each = now_us(), ORDER["connections"] // SUBMITTERS
    sent = [pool.submit(clients, each, ORDER["seconds"], ORDER["payload_bytes"], share * each) for share in range(SUBMITTERS)]
    submitted = sum(one.result() for one in sent)
    return None, submitted, now_us() - start


def main():
    os.environ.update(PEER_REDIS_URL=ORDER["redis_url"], PEER_ARRIVALS=ORDER["arrivals"], PEER_CONNECTIONS=str(ORDER["connections"]))
    import celery
    import tasks

    works = {"late": late, "burst": burst, "throughput": throughput, "submit": submit}
    # Not forked: a child would share the parent's connections.
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(SUBMITTERS + 1)
    with ProcessPoolExecutor(SUBMITTERS, spawn, get_ready, (barrier,)) as pool:
        for _ in range(SUBMITTERS):
            pool.submit(int)
        barrier.wait()
        workers, submitted, spent_us = works[ORDER["work"]](pool)
    if workers:
        workers.stop()
    settings = (
        f"prefork of {WORKER_PROCESSES} processes, -O fair, prefetch multiplier {tasks.PREFETCH}, "
        f"timer precision {tasks.TIMER_PRECISION} s, results ignored, visibility_timeout 1 h, no gossip, mingle or heartbeat, "
        f"{SUBMITTERS} submitting processes, connections {ORDER['connections']}; it has no call for many tasks"
    )
    version = f"celery {celery.__version__}, Python {sys.version.split()[0]}"
    answer = {"settings": settings, "version": version, "submitted": submitted, "submit_seconds": spent_us / 1e6, "unfair": UNFAIR}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
