-- In: queue: the table; first, beyond: a range of names, without the second. Out: the claims that have not expired, by name and in
-- order.
:writable;
SELECT name, seq, claim, kind, slots, who, clock.us - LEAST(since, clock.us) AS age, expires - clock.us AS time_left
    FROM :queue, (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS us) AS clock
    WHERE name >= :first AND name < :beyond AND expires > clock.us
    ORDER BY name, seq
