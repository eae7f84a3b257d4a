-- Draws the next number. It is at least the time of the wall clock. So numbers do not go back when the file is lost.
-- Binds: 1 microseconds since 1970. Answer: none.
UPDATE dlock_store SET last = CASE WHEN last >= ?1 THEN last + 1 ELSE ?1 END WHERE one = 1
