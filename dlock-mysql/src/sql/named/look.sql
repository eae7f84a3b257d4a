-- Reads the owner of a named lock, and the sessions that wait for named locks or whose statement
-- has a comment of dlock. In: owner: SQL for the owner of the lock, or NULL.
-- Out: a row with `owner`: the connection id of the owner, or NULL; then a row for each session
-- that the user may see.
:writable;
SET @dlock_owner = :owner;
SELECT @dlock_owner AS owner;
SELECT id AS session, CONCAT(user, '@', host) AS user, time AS seconds, COALESCE(state, '') LIKE 'User%lock%' AS is_waiting,
        COALESCE(info, '') AS statement
    FROM information_schema.processlist
    WHERE id <> CONNECTION_ID() AND (id = @dlock_owner OR state LIKE 'User%lock%' OR info LIKE '%/*dlock %')
    ORDER BY /*M! time_ms DESC, */ time DESC, id
