-- Adds what a file lacks that was made by a dlock which does not store who has a claim. Binds: none. Answer: none.
ALTER TABLE dlock_queue ADD COLUMN who TEXT
