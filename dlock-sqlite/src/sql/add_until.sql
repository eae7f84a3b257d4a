-- Adds the column for the expiry of detached claims to a file of a dlock that cannot detach claims.
-- The older dlock can continue to use the file. It never considers the client of a detached claim
-- dead, because that client does not exist.
-- In: nothing. Out: nothing.
ALTER TABLE dlock_queue ADD COLUMN until INTEGER
