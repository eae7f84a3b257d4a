-- Takes the named lock that a watch waits for. Fails on a server that has become read-only, because
-- new sessions are on another server. In: anchor. Out: a row with `is_taken`: 1 if this session
-- owns it.
:writable;
SELECT COALESCE(GET_LOCK(:anchor, 0), 0) AS is_taken
