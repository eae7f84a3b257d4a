-- Part of attempt.sql for a try. A try asks only once, so expired claims must not be in its way.
-- In: queue: the table; name.
DELETE FROM :queue
    WHERE name = :name AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
