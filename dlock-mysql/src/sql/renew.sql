-- Gives claims that have not expired a later end, and never an earlier one: one of them may have been detached for long meanwhile.
-- Never makes a claim. Leaves out claims whose rows another transaction keeps locked, on servers that can: MySQL 8.0 and
-- MariaDB 10.6. Older ones wait for the row. The limit, which is never met, keeps MySQL from merging the list into the update, which
-- would wait too.
-- In: queue: the table; claims: a list; ttl: microseconds; bells: take_bells.sql, or 0. Out: the claims of the list that are there and
-- have not expired, each with 1 if it lasts for the ttl from now on, or 0 if it was left out; and what the bells say.
:writable, @dlock_end = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl;
UPDATE
    (SELECT claim FROM :queue FORCE INDEX (claim)
        WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        LIMIT 1000 /*!80001 FOR UPDATE SKIP LOCKED */ /*M!100600 FOR UPDATE SKIP LOCKED */) AS free
    STRAIGHT_JOIN :queue AS own FORCE INDEX (claim) ON own.claim = free.claim
    SET own.expires = GREATEST(own.expires, @dlock_end);
SELECT claim, expires >= @dlock_end, :bells FROM :queue FORCE INDEX (claim)
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
