-- Rises with every token that is made or revoked.
SELECT token_revision AS revision FROM duetime.meta
