-- Binds: none. Answer: for each claim that is not detached its client, when the claim came, and when it expires.
SELECT client, since, expires FROM dlock_queue WHERE until IS NULL
