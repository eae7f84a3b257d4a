-- Reads the claims of a range of names. In: queue: the table; first, end: the names from first to
-- end, without end. Out: a row for each claim that has not expired, in order of name and arrival.
:writable;
SELECT name, seq, claim, kind, slots, who, clock.us - LEAST(since, clock.us) AS age, expires - clock.us AS time_left
    FROM :queue, (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS us) AS clock
    WHERE name >= :first AND name < :end AND expires > clock.us
    ORDER BY name, seq
