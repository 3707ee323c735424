<?php

require __DIR__ . '/vendor/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPConnectionConfig;
use PhpAmqpLib\Connection\AMQPConnectionFactory;

/** A channel at the broker that AMQP_URL names. */
function channel(): AMQPChannel
{
    $url = parse_url(getenv('AMQP_URL'));
    $config = new AMQPConnectionConfig();
    $config->setHost($url['host']);
    $config->setPort($url['port'] ?? 5672);
    $config->setUser(rawurldecode($url['user'] ?? 'guest'));
    $config->setPassword(rawurldecode($url['pass'] ?? 'guest'));
    $config->setVhost(rawurldecode(substr($url['path'] ?? '', 1)) ?: '/');
    return AMQPConnectionFactory::create($config)->channel();
}
