-- Locks: ACCESS EXCLUSIVE on duetime.quarantine for the moment of the change. Nodes that set a message aside wait for
-- it; nothing else does.

-- The quarantine keeps the first bytes of a body only; `body_bytes` is the size of the whole body.
ALTER TABLE duetime.quarantine
    ADD COLUMN body_bytes bigint,
    -- The properties of a message that no client can parse, as they came over the wire.
    ADD COLUMN properties bytea;
