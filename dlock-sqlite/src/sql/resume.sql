-- Renames an unexpired detached claim to a claim of this client.
-- In: 1 ticket, 2 now, 3 expires, 4 client, 5 pid, 6 host, 7 label, 8 claim. Out: one changed row,
-- or none if no claim is detached under this ticket.
UPDATE dlock_queue SET claim = ?8, expires = ?3, client = ?4, pid = ?5, host = ?6, who = ?7, until = NULL
WHERE claim = ?1 AND expires > ?2 AND until IS NOT NULL
