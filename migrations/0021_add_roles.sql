-- Locks: ACCESS EXCLUSIVE on token and audit for the moment in which a check is replaced and a column is added. No
-- table is rewritten; the check reads the tokens, at most some thousands. Nodes of the previous version know three
-- roles, so make tokens of the other roles after all nodes run this version.

-- The narrow roles: metrics only, submit only, report only, and reading without payloads.
ALTER TABLE duetime.token DROP CONSTRAINT token_role_check;
ALTER TABLE duetime.token ADD CONSTRAINT token_role_check
    CHECK (role IN ('metrics', 'submitter', 'reporter', 'observer', 'viewer', 'producer', 'operator'));

-- The id of the token that the caller used. A name can be given to another token once the first is revoked; an id
-- cannot. NULL: a token of the configuration, a person of an identity provider, or no caller.
ALTER TABLE duetime.audit ADD COLUMN who_id bigint;
