-- Binds: 1 claim. Answer: its place, if it has one.
SELECT name, seq, claim, kind, slots, client, pid, host, since, expires FROM dlock_queue
WHERE claim = ?1
