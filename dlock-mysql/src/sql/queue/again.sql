-- Keeps a claim alive that is in the queue, and reads the nearest claims ahead of it. Claims ahead
-- can only leave, so the row of the fence is not locked, and the batch delays no other claim.
-- In: queue: the table; name, claim, kind; ttl: microseconds; bell: SQL that takes the claim's
-- doorbell, or 0; nearest: maximum number of rows of the queue.
-- Out: as attempt.sql. `is_queued` is 0 if the claim is no longer in the queue.
:writable;
DELETE FROM :queue
    WHERE name = :name AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UPDATE :queue SET expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl) WHERE claim = :claim;
SET @dlock_kept = ROW_COUNT();
DO IF(@dlock_kept > 0, :bell, 0);
SELECT seq, claim, kind, slots, expires - LEAST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) AS time_left
    FROM :queue
    WHERE name = :name AND (claim = :claim OR :kind <> 'read' OR kind <> 'read')
        AND seq <= (SELECT own.seq FROM :queue AS own WHERE own.claim = :claim)
    ORDER BY seq DESC LIMIT :nearest;
SELECT 0 AS is_busy, 1 AS has_drawn, @dlock_kept > 0 AS is_queued
