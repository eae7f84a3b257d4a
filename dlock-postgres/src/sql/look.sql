-- Reads the claims of a range of names, without locks.
-- In: $1, $2: the names from $1 to $2, without $2. Out: a row for each claim that has not expired, in
-- order of name and arrival, with times in microseconds.
SELECT q.name, q.seq, q.claim, q.kind, q.slots, q.who,
    greatest(0, {schema}.micros_2(now.at) - {schema}.micros_2(q.since)) AS age,
    {schema}.micros_2(q.expires) - {schema}.micros_2(now.at) AS time_left
FROM {schema}.queue q, (SELECT pg_catalog.clock_timestamp() AS at) AS now
WHERE q.name >= $1 AND q.name < $2 AND q.expires > now.at
ORDER BY q.name, q.seq
