-- Binds: none. Answer: for each claim its client, when the claim came, and when it expires.
SELECT client, since, expires FROM dlock_queue
