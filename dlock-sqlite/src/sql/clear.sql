-- Deletes the claims of an earlier boot, but not the detached ones whose time is not over.
-- Binds: 1 nanoseconds since 1970. Answer: none.
DELETE FROM dlock_queue WHERE until IS NULL OR until <= ?1
