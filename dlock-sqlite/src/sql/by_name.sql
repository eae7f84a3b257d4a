-- Reads the claims of a lock. In: 1 name. Out: their rows, in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1
ORDER BY seq
