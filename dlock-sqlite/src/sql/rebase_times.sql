-- Converts the times of an earlier boot's claims to the clock of this boot. The remaining time is
-- taken from the wall clock. If that clock is behind, as on a host without a battery, the remaining
-- time is limited to the claim's whole duration.
-- In: 1 now, 2 nanoseconds since 1970. Out: nothing.
UPDATE dlock_queue SET
    since = since - expires + ?1 + MIN(until - ?2, expires - since),
    expires = ?1 + MIN(until - ?2, expires - since)
