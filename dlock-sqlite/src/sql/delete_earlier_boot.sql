-- Deletes the claims of an earlier boot, except detached ones that have not expired.
-- In: 1 nanoseconds since 1970. Out: nothing.
DELETE FROM dlock_queue WHERE until IS NULL OR until <= ?1
