-- Deletes a claim. In: 1 claim. Out: nothing.
DELETE FROM dlock_queue WHERE claim = ?1
