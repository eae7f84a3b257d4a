-- Renames a hold to its ticket, with an expiry that needs no renewal, and wakes the waiters by
-- releasing its doorbell. A hold that has the ticket's id is only extended. After @dlock_deadline
-- the batch changes nothing, because the caller may have given up. The rows are locked first, so
-- that the deadline is compared after any wait for another transaction.
-- In: queue: the table; name, claim, ticket; ttl: microseconds; ring: SQL that releases the
-- doorbell, or 0.
-- Out: the locked rows; then a row with `is_in_time`: 1 if the deadline had not passed; and
-- `is_renamed`: 1 if the hold now has the ticket's id.
:writable;
START TRANSACTION;
SELECT claim FROM :queue WHERE claim IN (:claim, :ticket) FOR UPDATE;
SET @dlock_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SET @dlock_in_time = @dlock_now < @dlock_deadline;
UPDATE :queue SET expires = IF(claim = :ticket, GREATEST(expires, @dlock_now + :ttl), @dlock_now + :ttl), claim = :ticket
    WHERE claim IN (:claim, :ticket) AND name = :name AND expires > @dlock_now AND @dlock_in_time;
SET @dlock_changed = ROW_COUNT();
COMMIT;
DO IF(@dlock_in_time, :ring, 0);
SELECT @dlock_in_time AS is_in_time, @dlock_changed > 0 AS is_renamed
