-- Tells whether one of these transactions ($1, as pg_locks names them) is still open. Every role may see that.
SELECT EXISTS (SELECT FROM pg_locks WHERE virtualxid = ANY($1::TEXT[]) AND granted)
