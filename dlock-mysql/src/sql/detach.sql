-- Gives a claim that has not expired an end that nobody renews, and rings those who wait for it: its doorbell is gone.
-- In: queue: the table; claim; ttl: microseconds; ring: what rings the doorbell, or 0. Out: one changed row, or none if the claim is gone.
:writable;
UPDATE :queue SET expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl
    WHERE claim = :claim AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DO :ring
