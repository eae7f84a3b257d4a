-- Reads the claims of the locks in a range of names. In: 1 first name of the range, 2 first name
-- beyond the range, or NULL if the range has no end. Out: their rows, by name and in order.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name >= ?1 AND (?2 IS NULL OR name < ?2)
ORDER BY name, seq
