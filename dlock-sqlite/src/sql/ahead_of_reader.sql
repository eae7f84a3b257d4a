-- Binds: 1 name, 2 number. Answer: the nearest claim ahead of this number that does not share.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND seq =
    (SELECT MAX(seq) FROM dlock_queue WHERE name = ?1 AND shares = 0 AND seq < ?2)
