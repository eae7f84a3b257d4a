-- Adds a claim to the end of its lock's queue.
-- In: 1 name, 2 number, 3 claim, 4 kind, 5 client, 6 pid, 7 host, 8 now, 9 expires, 10 the limit of
-- a permit or NULL, 11 label. Out: nothing.
INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires, slots, who)
VALUES (?1, ?2, ?3, ?4, ?4 = 'read', ?5, ?6, ?7, ?8, ?9, ?10, ?11)
