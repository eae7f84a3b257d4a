-- Gives claims that have not expired a later end, and never an earlier one: one of them may have been detached for long meanwhile.
-- Never makes a claim.
-- In: queue: the table; claims: a list; ttl: microseconds. Out: the claims of the list that are there and have not expired.
UPDATE :queue SET expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl)
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SELECT claim FROM :queue
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
