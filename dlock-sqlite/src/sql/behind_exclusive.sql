-- Reads the claims behind a number, up to and including the first one that is not a reader.
-- In: 1 name, 2 number. Out: their rows, in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq > ?2 AND seq <= COALESCE(
    (SELECT MIN(seq) FROM dlock_queue WHERE name = ?1 AND seq > ?2 AND shares = 0),
    9223372036854775807)
ORDER BY seq
