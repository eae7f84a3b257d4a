-- Reads the claim directly ahead of a number. In: 1 name, 2 number. Out: its row, if there is one.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq < ?2
ORDER BY seq DESC LIMIT 1
