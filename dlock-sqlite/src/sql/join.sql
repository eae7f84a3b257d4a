-- Puts a claim at the end of the queue of its lock.
-- Binds: 1 name, 2 number, 3 claim, 4 kind, 5 client, 6 pid, 7 host, 8 now, 9 expires, 10 the limit of a permit, else NULL,
-- 11 who. Answer: none.
INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires, slots, who)
VALUES (?1, ?2, ?3, ?4, ?4 = 'read', ?5, ?6, ?7, ?8, ?9, ?10, ?11)
