-- Binds: 1 name, 2 number, 3 the most. Answer: so many of the places ahead, the nearest first.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq < ?2
ORDER BY seq DESC LIMIT ?3
