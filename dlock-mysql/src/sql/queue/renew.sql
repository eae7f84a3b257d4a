-- Extends claims that have not expired. Never moves an expiry to an earlier time, because a claim
-- may have been detached for longer. Never inserts a claim. On MySQL 8.0 and MariaDB 10.6 or newer,
-- claims whose rows are locked by another transaction are left out. Older servers wait for the row.
-- The LIMIT is never reached. Without it, MySQL would merge the list into the update, and the
-- update would wait for locked rows.
-- In: queue: the table; claims: a list of ids; ttl: microseconds; bells: take_bells.sql, or 0.
-- Out: a row for each of the claims that has not expired, with `claim`; `is_renewed`: 1 if it was
-- extended, 0 if it was left out; and `bell_owner`: the value of bells.
:writable, @dlock_end = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl;
UPDATE
    (SELECT claim FROM :queue FORCE INDEX (claim)
        WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        LIMIT 1000 /*!80001 FOR UPDATE SKIP LOCKED */ /*M!100600 FOR UPDATE SKIP LOCKED */) AS free
    STRAIGHT_JOIN :queue AS own FORCE INDEX (claim) ON own.claim = free.claim
    SET own.expires = GREATEST(own.expires, @dlock_end);
SELECT claim, expires >= @dlock_end AS is_renewed, :bells AS bell_owner FROM :queue FORCE INDEX (claim)
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
