-- Binds: 1 client. Answer: all claims of the client.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE client = ?1
