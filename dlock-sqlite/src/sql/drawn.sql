-- Binds: none. Answer: the number that this transaction has drawn.
SELECT last FROM dlock_store WHERE one = 1
