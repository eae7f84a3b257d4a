-- Binds: none. Answer: the boot of the host in which the claims were made.
SELECT boot FROM dlock_store WHERE one = 1
