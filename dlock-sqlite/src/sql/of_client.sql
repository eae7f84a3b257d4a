-- Binds: 1 client. Answer: all its places.
SELECT name, seq, claim, kind, slots, client, pid, host, since, expires FROM dlock_queue
WHERE client = ?1
