-- Adds the column for labels to a file of a dlock that does not store labels. In: nothing. Out:
-- nothing.
ALTER TABLE dlock_queue ADD COLUMN who TEXT
