-- Keeps a claim alive that is in the queue already, and looks at what is ahead of it. What is ahead can only leave, so the fence is not
-- locked: claims that ask again hold up no others.
-- In: queue: the table; name, claim, kind; ttl: microseconds; bell: what takes the claim's doorbell, or 0; nearest: the most rows.
-- Out: as attempt.sql; the third statement changes one row, or none if the claim is not in the queue any more.
:writable;
DELETE FROM :queue
    WHERE name = :name AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UPDATE :queue SET expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ttl) WHERE claim = :claim;
DO IF(ROW_COUNT() > 0, :bell, 0);
SELECT seq, claim, kind, slots, expires - LEAST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) AS time_left
    FROM :queue
    WHERE name = :name AND (claim = :claim OR :kind <> 'read' OR kind <> 'read')
        AND seq <= (SELECT own.seq FROM :queue AS own WHERE own.claim = :claim)
    ORDER BY seq DESC LIMIT :nearest
