-- Deletes claims of any name that nobody renewed, the oldest first. In: queue: the table. Out: nothing.
DELETE FROM :queue WHERE expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ORDER BY expires LIMIT 16
