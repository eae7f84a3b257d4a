-- Who has a named lock, and which sessions wait for named locks or have said what they have. In: owner: what asks whose the
-- lock is, or NULL.
-- Out: a row with the number of the session that has it, or NULL; then a row for each session that the user may see.
:writable;
SET @dlock_owner = :owner;
SELECT @dlock_owner;
SELECT id, CONCAT(user, '@', host), time, COALESCE(state, '') LIKE 'User%lock%', COALESCE(info, '')
    FROM information_schema.processlist
    WHERE id <> CONNECTION_ID() AND (id = @dlock_owner OR state LIKE 'User%lock%' OR info LIKE '%/*dlock %')
    ORDER BY /*M! time_ms DESC, */ time DESC, id
