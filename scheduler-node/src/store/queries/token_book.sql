-- Reads every token that is not revoked, expired ones too, with the revision of all tokens; one row without a name:
-- there is none. `left_ms`: the time until the token expires, by this database's clock; NULL: it does not expire.
SELECT m.token_revision AS revision, t.id, t.name, t.role, t.queues, t.sha256, t.limits,
       -- `greatest` ignores a NULL, but left_ms has to stay NULL for a token without expiry.
       CASE WHEN t.expires_at IS NOT NULL
            THEN greatest(0, extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint END AS left_ms
  FROM duetime.meta AS m
  LEFT JOIN duetime.token AS t ON t.revoked_at IS NULL
