# The URL of RabbitMQ in a file, and a secret of the target.
printf '%s' "$AMQP_URL" > amqp.url
(umask 077 && printf 'whsec_%s\n' "$(head -c 32 /dev/urandom | base64 -w0)" > hooks.secret)
