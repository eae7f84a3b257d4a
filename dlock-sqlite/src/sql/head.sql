-- Binds: 1 name, 2 the most. Answer: so many of the first places of its queue, in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1
ORDER BY seq LIMIT ?2
