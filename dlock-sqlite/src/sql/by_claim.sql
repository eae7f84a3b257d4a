-- Reads a claim. In: 1 claim. Out: its row, if it is in the file.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE claim = ?1
