"""An application's Celery worker: two tasks that write down each of their runs."""

import os

from celery import Celery
from kombu import Queue

app = Celery("app", broker=os.environ["AMQP_URL"])
app.conf.update(
    # Duetime has declared it. A worker takes the queues of this list and no others.
    task_queues=[Queue("celery.later", no_declare=True, queue_arguments={"x-queue-type": "quorum"})],
    # A task that fails is rejected: its next attempt is Duetime's to make.
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,
)


def note(task, what):
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(f"{task.request.id} {task.request.retries} {what}\n")


@app.task(name="app.add", bind=True)
def add(self, a, b, text=""):
    note(self, f"{text}{a + b}")


@app.task(name="app.flaky", bind=True)
def flaky(self):
    note(self, "flaky")
    if self.request.retries == 0:
        raise RuntimeError("not the first time")
