-- Part of attempt.sql for a try: whether the claim would hold, or is in the queue already.
-- In: queue: the table; name, claim, kind, slots; live: a condition on the claims that count.
(EXISTS (SELECT 1 FROM :queue AS own WHERE own.claim = :claim)
    OR (SELECT CASE :kind
            WHEN 'read' THEN COALESCE(SUM(others.kind <> 'read'), 0) = 0
            WHEN 'permit' THEN COALESCE(SUM(others.kind <> 'permit'), 0) = 0
                AND COUNT(*) < LEAST(:slots, COALESCE(MIN(others.slots), :slots))
            ELSE COUNT(*) = 0 END
        FROM :queue AS others WHERE others.name = :name AND :live))
