-- Reads the number that this transaction has drawn. In: nothing. Out: a row with `last`.
SELECT last FROM dlock_store WHERE one = 1
