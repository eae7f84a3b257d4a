-- Part of attempt.sql for a try that may hold. A try makes one attempt only, so expired claims have
-- to be deleted before it reads the queue.
-- In: queue: the table; name.
DELETE FROM :queue
    WHERE NOT @dlock_busy AND name = :name AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
