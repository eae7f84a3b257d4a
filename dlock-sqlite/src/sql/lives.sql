-- Binds: none. Answer: the client of each claim, when it came, and when it expires.
SELECT client, since, expires FROM dlock_queue
