-- Binds: 1 name, 2 number. Answer: the claims behind this number, in order.
-- The last one is the first that does not share, if there is one.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq > ?2 AND seq <= COALESCE(
    (SELECT MIN(seq) FROM dlock_queue WHERE name = ?1 AND seq > ?2 AND shares = 0),
    9223372036854775807)
ORDER BY seq
