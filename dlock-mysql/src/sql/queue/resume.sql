-- Renames a detached hold from its ticket to the claim's own id, with the claim's ttl and client.
-- The hold keeps its number, which is its place and its token. A claim that only waits is not
-- renamed. After @dlock_deadline the batch changes nothing, because the caller may have given up.
-- The rows are locked first, so that the deadline is compared after any wait for another
-- transaction.
-- In: queue: the table; name, claim, ticket, who; ttl: microseconds; bell: SQL that takes the
-- doorbell, or 0.
-- Out: the locked rows; then a row with `is_in_time`: 1 if the deadline had not passed;
-- `is_renamed`: 1 if the hold now has the claim's id; `seq`: number of the hold; `had_own_id`: 1 if
-- the hold had the claim's id before the batch; `time_left`: microseconds until the expiry before
-- the batch.
:writable;
START TRANSACTION;
SELECT claim FROM :queue WHERE claim IN (:claim, :ticket) FOR UPDATE;
SET @dlock_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @dlock_seq = 0, @dlock_own = 0, @dlock_left = 0;
SET @dlock_in_time = @dlock_now < @dlock_deadline;
SELECT seq, claim = :claim, expires - @dlock_now INTO @dlock_seq, @dlock_own, @dlock_left FROM :queue AS own
    WHERE claim IN (:claim, :ticket) AND name = :name AND expires > @dlock_now AND CASE own.kind
        WHEN 'read' THEN NOT EXISTS (SELECT 1 FROM :queue AS ahead
            WHERE ahead.name = :name AND ahead.seq < own.seq AND ahead.kind <> 'read')
        WHEN 'permit' THEN (SELECT COALESCE(SUM(ahead.kind <> 'permit'), 0) = 0
                AND COUNT(*) < COALESCE(MIN(LEAST(ahead.slots, own.slots)), own.slots)
            FROM :queue AS ahead WHERE ahead.name = :name AND ahead.seq < own.seq)
        ELSE NOT EXISTS (SELECT 1 FROM :queue AS ahead WHERE ahead.name = :name AND ahead.seq < own.seq) END
    LIMIT 1;
UPDATE :queue SET claim = :claim, who = :who, expires = @dlock_now + :ttl
    WHERE name = :name AND seq = @dlock_seq AND claim IN (:claim, :ticket) AND @dlock_in_time;
SET @dlock_changed = ROW_COUNT();
COMMIT;
DO IF(@dlock_changed > 0, :bell, 0);
SELECT @dlock_in_time AS is_in_time, @dlock_changed > 0 AS is_renamed, @dlock_seq AS seq, @dlock_own AS had_own_id,
    @dlock_left AS time_left
