-- Looks up claims. Fails on a read-only server, because the claims are on another server.
-- In: queue: the table; claims: a list of ids.
-- Out: a row for each of the claims that has not expired, with `claim`, `kind`, `seq` and `time_left`:
-- microseconds until its expiry.
SELECT claim, kind, seq, expires - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS time_left
    FROM :queue FORCE INDEX (claim)
    WHERE claim IN (:claims) AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND :refusal
