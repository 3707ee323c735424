"""Submits one task over AMQP: producer.py QUEUE KEY N [DELAY_MS]"""

import json
import os
import sys

import pika

queue, key, n, *delay_ms = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
# From here on a publish returns when the broker has kept the message, and raises when it has not or no queue takes it.
channel.confirm_delivery()
channel.basic_publish(
    exchange="duetime.in",
    routing_key="submit." + queue,
    body=json.dumps({"n": int(n)}),
    properties=pika.BasicProperties(
        content_type="application/json",
        delivery_mode=pika.DeliveryMode.Persistent,
        # The key: sent twice, it is still one task.
        message_id=key,
        headers={"duetime-delay-ms": int(delay_ms[0]) if delay_ms else 0},
    ),
    mandatory=True,
)
connection.close()
