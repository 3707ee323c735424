-- Locks: ACCESS EXCLUSIVE on duetime.queue for an instant; reads of the queues wait for it.

-- The caller whose first submission made the queue; NULL where an operator or the configuration made it.
ALTER TABLE duetime.queue ADD COLUMN created_by text;
