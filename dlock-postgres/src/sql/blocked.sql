-- Reads which claims of a list wait for a claim ahead. Takes no lock.
-- In: $1: ids of claims. Out: a row with `claim` for each claim of the list that is in the queue and
-- does not hold. A claim behind an expired one counts as holding, and its attempt deletes the expired
-- claim.
SELECT o.claim FROM {schema}.queue o
WHERE o.claim = ANY ($1) AND CASE o.kind
    WHEN 3 THEN EXISTS (
        SELECT 1 FROM {schema}.queue a
        WHERE a.name = o.name AND a.seq < o.seq AND a.expires > pg_catalog.clock_timestamp() AND a.kind <> 3)
    WHEN 5 THEN (
        SELECT count(*) >= least(min(a.slots), o.slots) OR bool_or(a.kind <> 5)
        FROM {schema}.queue a
        WHERE a.name = o.name AND a.seq < o.seq AND a.expires > pg_catalog.clock_timestamp())
    ELSE EXISTS (
        SELECT 1 FROM {schema}.queue a
        WHERE a.name = o.name AND a.seq < o.seq AND a.expires > pg_catalog.clock_timestamp())
    END
