-- Deletes a claim. Binds: 1 claim. Answer: none.
DELETE FROM dlock_queue WHERE claim = ?1
