-- Puts a claim at the end of the queue of its name, or keeps it alive where it is. A read claim whose id holds in another kind makes that
-- hold a read hold. After @dlock_until the batch puts nothing there: its caller may have given up and released the claim. A
-- claim without a number, because its row of the fence is missing, is not inserted. A
-- claim that finds expired ones ahead asks once more, with again.sql, which deletes them.
-- In: fence, queue: the tables; name, claim, kind, slots, who; ttl: microseconds; clean, condition: try_clean.sql and try_condition.sql
-- for a try, else empty; bell: what takes the doorbell of a claim that is in the queue, or 0; nearest: the most rows.
-- Out: the claim's row, if it is in the queue, and the nearest claims ahead that it may have to wait for, the last first.
START TRANSACTION;
UPDATE :fence SET last = LAST_INSERT_ID(
        IF(:read_only, :refusal, GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))))
    WHERE bucket = CRC32(:name) % 1024;
SET @dlock_drawn = ROW_COUNT();
:clean
INSERT INTO :queue (name, seq, claim, kind, slots, since, expires, who)
    SELECT :name, LAST_INSERT_ID(), :claim, :kind, :slots, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl, :who
    FROM DUAL WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) < @dlock_until AND @dlock_drawn = 1 :condition
    ON DUPLICATE KEY UPDATE
        expires = GREATEST(:queue.expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl),
        kind = IF(:kind = 'read', 'read', :queue.kind);
DO IF(ROW_COUNT() > 0, :bell, 0);
SELECT seq, claim, kind, slots, expires - LEAST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) AS time_left
    FROM :queue
    WHERE name = :name AND (claim = :claim OR :kind <> 'read' OR kind <> 'read')
        AND seq <= COALESCE((SELECT own.seq FROM :queue AS own WHERE own.claim = :claim), 18446744073709551615)
    ORDER BY seq DESC LIMIT :nearest;
COMMIT
