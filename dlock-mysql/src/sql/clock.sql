-- In: nothing. Out: a row with the microseconds since 1970 on the clock of the server.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
