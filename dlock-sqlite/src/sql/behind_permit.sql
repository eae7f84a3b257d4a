-- Reads the claims behind a number, at most as many as the largest limit of a permit in the queue.
-- These include every permit that watches the claim of this number, because a permit watches no
-- more claims ahead than its own limit. In: 1 name, 2 number. Out: their rows, in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq > ?2
ORDER BY seq LIMIT (SELECT COALESCE(MAX(slots), 0) FROM dlock_queue WHERE name = ?1)
