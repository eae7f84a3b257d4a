-- Binds: 1 name. Answer: the claims of the lock, in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1
ORDER BY seq
