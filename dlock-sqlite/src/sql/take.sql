-- Makes a claim that has not expired this client's, and gives it a later end. It was detached, or another client's.
-- Binds: 1 claim, 2 now, 3 expires, 4 client, 5 pid, 6 host, 7 who. Answer: one changed row, or none if the claim is gone.
UPDATE dlock_queue SET expires = ?3, client = ?4, pid = ?5, host = ?6, who = ?7, until = NULL
WHERE claim = ?1 AND expires > ?2
