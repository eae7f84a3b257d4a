-- Reads the claims of a lock that were not renewed within their ttl, and one claim in any case.
-- In: 1 name, 2 now, 3 claim or NULL. Out: their rows, each once.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND expires <= ?2
UNION ALL
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE claim = ?3 AND NOT (name = ?1 AND expires <= ?2)
