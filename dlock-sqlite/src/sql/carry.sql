-- Moves the claims that an earlier boot has left to the clock of this boot. The wall clock tells how much of their time is
-- left. If the wall clock is behind, as on a host without a battery, a claim lasts no longer than it would have in all.
-- Binds: 1 now, 2 nanoseconds since 1970. Answer: none.
UPDATE dlock_queue SET
    since = since - expires + ?1 + MIN(until - ?2, expires - since),
    expires = ?1 + MIN(until - ?2, expires - since)
