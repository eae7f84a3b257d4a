-- Turns a hold into a read hold, which keeps its number. Binds: 1 claim. Answer: none.
UPDATE dlock_queue SET kind = 'read', shares = 1 WHERE claim = ?1
