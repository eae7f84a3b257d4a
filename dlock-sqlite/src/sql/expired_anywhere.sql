-- Binds: 1 now, 2 the most. Answer: the places of those not heard of for their ttl, of any lock, the oldest first.
SELECT name, seq, claim, kind, slots, client, pid, host, since, expires FROM dlock_queue
WHERE expires <= ?1
ORDER BY expires LIMIT ?2
