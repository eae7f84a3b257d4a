-- Reads the nearest claims ahead of a number. In: 1 name, 2 number, 3 maximum number of rows.
-- Out: their rows, the nearest first.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq < ?2
ORDER BY seq DESC LIMIT ?3
