-- Deletes claims. In: queue: the table; claims: a list of ids. Out: a row with `is_deleted`: 1 if
-- at least one of them was in the queue.
:writable;
DELETE FROM :queue WHERE claim IN (:claims);
SELECT ROW_COUNT() > 0 AS is_deleted
