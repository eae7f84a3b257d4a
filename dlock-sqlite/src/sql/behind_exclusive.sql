-- Binds: 1 name, 2 number. Answer: the places behind, in order, up to the first that does not share.
SELECT name, seq, claim, kind, slots, client, pid, host, since, expires FROM dlock_queue
WHERE name = ?1 AND seq > ?2 AND seq <= COALESCE(
    (SELECT MIN(seq) FROM dlock_queue WHERE name = ?1 AND seq > ?2 AND shares = 0),
    9223372036854775807)
ORDER BY seq
