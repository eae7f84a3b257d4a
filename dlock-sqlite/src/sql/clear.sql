-- Deletes every claim. Binds: none. Answer: none.
DELETE FROM dlock_queue
