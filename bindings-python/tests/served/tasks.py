"""A Celery program that gives itself tasks; each writes the process that did it into the file `DONE`."""

import os

import counted
from celery import Celery, signals

app = Celery("tasks", broker="memory://")
app.conf.worker_hijack_root_logger = False
app.conf.broker_transport_options = {"polling_interval": 0.05}
tracer = counted.configure()


@app.task
def work():
    with tracer.start_as_current_span("task"):
        pid = counted.work("worker", 0.05)
    with open(os.environ["DONE"], "a") as done:
        print(pid, file=done)


@signals.worker_ready.connect
def give(**_):
    for _ in range(10):
        work.delay()
