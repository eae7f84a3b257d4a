-- Looks whether claims are still in the queue. A read-only server refuses: the claims are on another one.
-- In: queue: the table; claims: a list. Out: a row for each claim that has not expired, with its id and its kind.
SELECT claim, kind FROM :queue FORCE INDEX (claim)
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND :refusal
