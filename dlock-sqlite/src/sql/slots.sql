-- Adds what a file lacks that was made by a dlock without permits. Such a dlock goes on using the file: it takes a permit for
-- a mutex, and so never holds beside one. Binds: none. Answer: none.
ALTER TABLE dlock_queue ADD COLUMN slots INTEGER CHECK (slots IS NULL OR slots > 0 AND kind = 'mutex')
