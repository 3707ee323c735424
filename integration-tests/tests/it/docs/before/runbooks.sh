# Somebody who is on call knows the queue, the schedule, a task and a node that an alert is about.
QUEUE=mails
NAME=nightly
NODE=${DUETIME_URLS##*//}
duetime queue set "$QUEUE" settle=confirm
duetime schedule put "$NAME" queue=reports cron='30 2 * * *'
ID=$(duetime submit "$QUEUE" --delay 1h | cut -d" " -f1)
