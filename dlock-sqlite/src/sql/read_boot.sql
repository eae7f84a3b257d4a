-- Reads the id of the host's boot in which the claims were created. In: nothing.
-- Out: a row with `boot`.
SELECT boot FROM dlock_store WHERE one = 1
