-- Reads the revision of the queues, which rises with every change of a queue.
SELECT queue_revision AS revision FROM duetime.meta
