-- Binds: 1 the least name, 2 the first name beyond the range, or NULL if there is none.
-- Answer: the claims of the locks in the range, by name and in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name >= ?1 AND (?2 IS NULL OR name < ?2)
ORDER BY name, seq
