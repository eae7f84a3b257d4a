-- Reads the nearest claim ahead of a number that is not a reader. In: 1 name, 2 number.
-- Out: its row, if there is one.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq =
    (SELECT MAX(seq) FROM dlock_queue WHERE name = ?1 AND shares = 0 AND seq < ?2)
