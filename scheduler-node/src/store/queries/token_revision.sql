-- Reads the revision of the tokens, which rises with every token that is made or revoked.
SELECT token_revision AS revision FROM duetime.meta
