"""The Celery application: its settings, and the task that records its arrival."""

import os
import time

from billiard import current_process
from celery import Celery
from celery.signals import worker_process_init

# "Say 64, or 128": what the documentation advises for many short tasks.
PREFETCH = 128
# "If you need near millisecond precision you can set this to 0.1."
TIMER_PRECISION = 0.1
CONNECTIONS = int(os.environ.get("PEER_CONNECTIONS", "10"))

app = Celery("arrivals", broker=os.environ["PEER_REDIS_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_pool_limit=CONNECTIONS,
    task_ignore_result=True,
    worker_prefetch_multiplier=PREFETCH,
    worker_timer_precision=TIMER_PRECISION,
)


class Arrivals:
    """The file of what one worker process ran. Each line is written at once: the parent counts the lines."""

    file = None

    @classmethod
    def open(cls, **_):
        path = f"{os.environ['PEER_ARRIVALS']}.{current_process().index + 1}"
        cls.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


worker_process_init.connect(Arrivals.open)


@app.task
def arrive(number, due_us, _pad):
    got_us = time.time_ns() // 1000
    os.write(Arrivals.file, f"{number} {due_us} {got_us}\n".encode())
