-- Deletes a claim, under its own id or that of its ticket, and wakes its waiters. `CONCAT` keeps the
-- server from a search by name, which reads the released claims that a long transaction retains.
-- In: queue: the table; name; claims: a list of ids; ring: SQL that releases the doorbell, or 0.
-- Out: a row with `is_deleted`: 1 if the claim was in the queue; and `session`: the connection id.
:writable;
DELETE FROM :queue WHERE claim IN (:claims) AND CONCAT(name) = :name;
SET @dlock_deleted = ROW_COUNT();
DO :ring;
SELECT @dlock_deleted > 0 AS is_deleted, CONNECTION_ID() AS session
