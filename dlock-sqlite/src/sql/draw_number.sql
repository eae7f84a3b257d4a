-- Draws the next number. It is at least the time of the wall clock, so that numbers do not decrease
-- when the file is lost. In: 1 microseconds since 1970. Out: a row with `last`, the drawn number.
UPDATE dlock_store SET last = CASE WHEN last >= ?1 THEN last + 1 ELSE ?1 END WHERE one = 1
RETURNING last
