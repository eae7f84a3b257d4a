-- Draws the next number. Never back, not even in a file that lost its data: it starts from the wall clock.
-- Binds: 1 microseconds since 1970. Answer: none.
UPDATE dlock_store SET last = CASE WHEN last >= ?1 THEN last + 1 ELSE ?1 END WHERE one = 1
