-- Binds: 1 name, 2 number. Answer: as many of the claims behind this number as the largest limit of a permit in the queue.
-- A permit that watches the claim of this number is among them: it watches no more claims ahead than its own limit.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq > ?2
ORDER BY seq LIMIT (SELECT COALESCE(MAX(slots), 0) FROM dlock_queue WHERE name = ?1)
