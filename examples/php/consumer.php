<?php

// Works on the tasks of one queue until it is stopped: php consumer.php QUEUE
require __DIR__ . '/connect.php';

use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Exception\AMQPRuntimeException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const STEPS = 3;
const STEP_US = 1_200_000;

/** Some steps, each of which says how far it is. An exception is a failed attempt. */
function work(array $payload, callable $progress): array
{
    if ($payload['n'] < 0) {
        throw new InvalidArgumentException('n must not be negative');
    }
    for ($step = 0; $step < STEPS; $step++) {
        $progress(intdiv(100 * $step, STEPS));
        usleep(STEP_US);
    }
    return ['square' => $payload['n'] ** 2];
}

function on_task(AMQPMessage $task): void
{
    $wants_report = $task->has('reply_to');
    $report = function (array $what) use ($task, $wants_report): void {
        // Only a queue with `settle = result` wants to be told.
        if (!$wants_report) {
            return;
        }
        // Which attempt it is about, and the proof that it was ours.
        $names = array_flip(['duetime-attempt', 'duetime-receipt']);
        $headers = array_intersect_key($task->get('application_headers')->getNativeData(), $names);
        // A result that JSON does not have, such as INF, is an exception of the attempt.
        $body = json_encode($what, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE);
        $task->getChannel()->basic_publish(new AMQPMessage($body, [
            'content_type' => 'application/json',
            'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
            'correlation_id' => $task->get('correlation_id'),
            'application_headers' => new AMQPTable($headers),
        ]), 'duetime.in', 'result.' . $task->get('type'), mandatory: true);
        $task->getChannel()->wait_for_pending_acks_returns(10);
    };
    try {
        // Each report of `running` moves the deadline.
        $running = fn (int $percent) => $report(['status' => 'running', 'progress' => $percent]);
        $report(['status' => 'succeeded', 'result' => work(json_decode($task->getBody(), true), $running)]);
    } catch (AMQPExceptionInterface $error) {
        // Not answered: it comes again, to a consumer that can be reached.
        throw $error;
    } catch (Throwable $error) {
        // Whatever the payload was, the attempt has failed.
        $report(['status' => 'failed', 'status_msg' => $error->getMessage()]);
        if (!$wants_report) {
            $task->reject(false);
            return;
        }
    }
    $task->ack();
    echo $task->get('message_id'), "\n";
}

$channel = channel();
$channel->confirm_select();
$channel->set_nack_handler(fn () => throw new AMQPRuntimeException('the broker has not kept a report'));
// The broker returns a report that no queue takes, before it confirms it.
$channel->set_return_listener(fn ($code, $text) => throw new AMQPRuntimeException("no queue takes a report: $text"));
$channel->basic_qos(0, 1, false);
$channel->basic_consume($argv[1], callback: on_task(...));
$channel->consume();
