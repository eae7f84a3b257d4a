-- Puts a claim at the end of the queue of its name, or keeps it alive in its place. A read claim
-- with the id of a hold of another kind turns that hold into a read hold. After @dlock_deadline the
-- batch puts no claim into the queue, because the caller may have given up and released it. A claim
-- whose row of the fence is missing gets no number and is not inserted. If there are expired claims
-- ahead, the driver then executes again.sql, which deletes them.
-- In: fence, queue: the tables; name, claim, kind, slots, who; ttl: microseconds; look, clean:
-- try_look.sql and try_clean.sql for a try, else empty; busy, condition: @dlock_busy and
-- try_condition.sql for a try, else 0 and 1; bell: SQL that takes the doorbell of a claim that is in
-- the queue, or 0; nearest: maximum number of rows of the queue.
-- Out: first, in descending order of `seq`, the claim's row if it is in the queue, and the rows of
-- the nearest claims ahead for which it may have to wait. Then a row with `is_busy`: 1 if a try was
-- refused before the transaction; `has_drawn`: 1 if the claim got a number; `is_queued`: 1 if the
-- batch put the claim into the queue or extended it.
:look
START TRANSACTION;
UPDATE :fence SET last = LAST_INSERT_ID(
        IF(:read_only, :refusal, GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))))
    WHERE bucket = CRC32(:name) % 1024 AND NOT :busy;
SET @dlock_drawn = ROW_COUNT();
:clean
INSERT INTO :queue (name, seq, claim, kind, slots, since, expires, who)
    SELECT :name, LAST_INSERT_ID(), :claim, :kind, :slots, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl, :who
    FROM DUAL WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) < @dlock_deadline AND @dlock_drawn = 1 AND :condition
    ON DUPLICATE KEY UPDATE
        expires = GREATEST(:queue.expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl),
        kind = IF(:kind = 'read', 'read', :queue.kind);
SET @dlock_entered = ROW_COUNT();
DO IF(@dlock_entered > 0, :bell, 0);
SELECT seq, claim, kind, slots, expires - LEAST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) AS time_left
    FROM :queue
    WHERE name = :name AND (claim = :claim OR :kind <> 'read' OR kind <> 'read')
        AND seq <= COALESCE((SELECT own.seq FROM :queue AS own WHERE own.claim = :claim), 18446744073709551615)
    ORDER BY seq DESC LIMIT :nearest;
COMMIT;
SELECT :busy <> 0 AS is_busy, @dlock_drawn = 1 AS has_drawn, @dlock_entered > 0 AS is_queued
