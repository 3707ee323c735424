-- Notes since when the tasks of a queue are reported on. An attempt that was with RabbitMQ before went to consumers
-- that report nothing, so their silence is no failure of it.
-- Locks: duetime.queue_turn, ACCESS EXCLUSIVE for a moment: claims, reports and submissions of the nodes wait for it.
-- The table is not written anew.

-- When the queue's `settle` last became `result`, by the clock of the queues' home database, and five
-- seconds before in the others, whose clocks may differ; NULL: never.
ALTER TABLE duetime.queue_turn ADD COLUMN reports_since timestamptz;
