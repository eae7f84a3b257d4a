-- Reads the server's clock.
-- In: nothing. Out: a row with `clock`: microseconds since 1970.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS clock
