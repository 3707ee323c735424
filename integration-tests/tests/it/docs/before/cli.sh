# Files to submit, a queue that is no longer needed, and a task for each command that takes an id.
export HOME=$PWD
printf 'a cat' > cat.png
printf '%s\n' '{"queue":"mails","payload":{"to":"bob"},"delay_ms":600000}' '{"queue":"mails","delay_ms":600000}' > tasks.jsonl
duetime queue set old-mails settle=confirm
duetime queue set jobs settle=result max_attempts=1
duetime queue set notes settle=confirm
later() { duetime submit "$1" --delay 1h | cut -d" " -f1; }
delivered() {
    local id
    id=$(duetime submit jobs | cut -d" " -f1)
    until duetime get "$id" | grep -q '^state  *delivered'; do sleep 0.1; done
    echo "$id"
}
dead=$(delivered)
duetime result "$dead" --attempt 1 --status discard --status-msg "no route"
ID=()
# get, cancel three, stop, move, run, retry, two results
for queue in mails mails mails mails mails mails notes; do ID+=("$(later $queue)"); done
ID+=("$dead" "$(delivered)" "$(delivered)")
