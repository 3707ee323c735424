"""Works on the tasks of one queue until it is stopped: consumer.py QUEUE"""

import json
import os
import sys

import pika

STEPS = 3
STEP_S = 1.2


def work(payload, progress):
    """Some steps, each of which says how far it is. An exception is a failed attempt."""
    if payload["n"] < 0:
        raise ValueError("n must not be negative")
    for step in range(STEPS):
        progress(100 * step // STEPS)
        connection.sleep(STEP_S)
    return {"square": payload["n"] ** 2}


def on_task(channel, method, properties, body):
    def report(**what):
        # Only a queue with `settle = result` wants to be told.
        if properties.reply_to:
            channel.basic_publish(
                exchange="duetime.in",
                routing_key="result." + properties.type,
                # Raises when the result is none that JSON has, such as NaN.
                body=json.dumps(what, allow_nan=False),
                properties=pika.BasicProperties(
                    content_type="application/json",
                    delivery_mode=pika.DeliveryMode.Persistent,
                    correlation_id=properties.correlation_id,
                    # Which attempt it is about, and the proof that it was ours.
                    headers={name: properties.headers[name] for name in ("duetime-attempt", "duetime-receipt")},
                ),
                # Raises when no queue takes it.
                mandatory=True,
            )

    try:
        # Each report of `running` moves the deadline.
        result = work(json.loads(body), lambda percent: report(status="running", progress=percent))
        report(status="succeeded", result=result)
    except pika.exceptions.AMQPError:
        # Without an ack it comes again, to a consumer that can be reached.
        raise
    except Exception as error:
        report(status="failed", status_msg=str(error))
        if not properties.reply_to:
            return channel.basic_reject(method.delivery_tag, requeue=False)
    channel.basic_ack(method.delivery_tag)
    print(properties.message_id, flush=True)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=1)
channel.basic_consume(sys.argv[1], on_task)
channel.start_consuming()
sys.exit("the subscription has ended")
