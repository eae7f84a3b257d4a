-- Adds the column for the limits of permits to a file of a dlock without permits. The older dlock
-- can continue to use the file. It treats a permit as a mutex, so it never holds beside one.
-- In: nothing. Out: nothing.
ALTER TABLE dlock_queue ADD COLUMN slots INTEGER CHECK (slots IS NULL OR slots > 0 AND kind = 'mutex')
