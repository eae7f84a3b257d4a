-- Renews a claim, says who has it now, and takes its doorbell. It was detached, or another client's.
-- In: queue: the table; claim, who; ttl: microseconds; bell: what takes the doorbell, or 0. Out: one changed row, or none if the
-- claim is gone.
:writable;
UPDATE :queue SET expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl, who = :who
    WHERE claim = :claim AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DO IF(ROW_COUNT() > 0, :bell, 0)
