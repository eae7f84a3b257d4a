-- Reads claims of all locks that were not renewed within their ttl, the oldest first.
-- In: 1 now, 2 maximum number of rows. Out: their rows.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE expires <= ?1
ORDER BY expires LIMIT ?2
