-- Reads all claims of a client. In: 1 client. Out: their rows.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE client = ?1
