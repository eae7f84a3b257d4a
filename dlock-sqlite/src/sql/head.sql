-- Reads the first claims of a queue. In: 1 name, 2 maximum number of rows. Out: their rows, in
-- order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1
ORDER BY seq LIMIT ?2
