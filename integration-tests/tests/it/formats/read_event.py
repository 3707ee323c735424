"""Takes one message off the queue that is named and prints the CloudEvent in it."""

import base64
import json
import os
import sys

import pika
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
_, properties, body = connection.channel().basic_get(sys.argv[1], auto_ack=True)
event = from_rabbitmq_event(RabbitMQMessage(headers={}, content_type=properties.content_type, body=body))
data = event.get_data()
if isinstance(data, bytes):
    data = {"bytes": base64.b64encode(data).decode()}
print(json.dumps({"attributes": event.get_attributes(), "data": data}, default=str))
