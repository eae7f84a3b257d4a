-- Adds what a file lacks that was made by a dlock which cannot detach claims. Such a dlock goes on using the file: it never
-- finds the client of a detached claim dead, because there is none. Binds: none. Answer: none.
ALTER TABLE dlock_queue ADD COLUMN until INTEGER
