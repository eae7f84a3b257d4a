-- Binds: 1 now, 2 the most rows. Answer: claims of any lock that nobody renewed for their ttl, the oldest first.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE expires <= ?1
ORDER BY expires LIMIT ?2
