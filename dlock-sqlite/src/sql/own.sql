-- Binds: 1 claim. Answer: the row of the claim, if it is in the file.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE claim = ?1
