-- Binds: none. Answer: the boot of the host that the rows are of.
SELECT boot FROM dlock_store WHERE one = 1
