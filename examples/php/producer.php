<?php

// Submits one task over AMQP: php producer.php QUEUE KEY N [DELAY_MS]
require __DIR__ . '/connect.php';

use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

[, $queue, $key, $n] = $argv;
$channel = channel();
$channel->confirm_select();
$channel->set_nack_handler(fn () => throw new RuntimeException('the broker has not kept it'));
// The broker returns a message that no queue takes, before it confirms it.
$channel->set_return_listener(fn ($code, $text) => throw new RuntimeException("no queue takes it: $text"));
$channel->basic_publish(new AMQPMessage(json_encode(['n' => (int) $n]), [
    'content_type' => 'application/json',
    'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
    // The key: sent twice, it is still one task.
    'message_id' => $key,
    'application_headers' => new AMQPTable(['duetime-delay-ms' => (int) ($argv[4] ?? 0)]),
]), 'duetime.in', 'submit.' . $queue, mandatory: true);
$channel->wait_for_pending_acks_returns(10);
$channel->getConnection()->close();
