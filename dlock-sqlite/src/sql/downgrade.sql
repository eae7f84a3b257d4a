-- Turns a hold into a read hold with the same number. In: 1 claim. Out: nothing.
UPDATE dlock_queue SET kind = 'read', shares = 1 WHERE claim = ?1
