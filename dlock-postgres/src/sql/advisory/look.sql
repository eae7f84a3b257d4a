-- Reads the sessions that own advisory locks of this database or wait for them. In: condition: selects
-- the rows of pg_locks.
-- Out: a row for each session and lock, holders first and waiters in order, with `is_granted`; `mode`;
-- the key as `classid`, `objid`, `objsubid`; `pid`; `waited`: microseconds since the wait began; `idle`:
-- microseconds since the last statement ended, if none is executed; `client`: user and address;
-- `application_name`; and `query`: the last statement, if the user may see it.
SELECT l.granted::text AS is_granted, l.mode, l.classid::bigint AS classid, l.objid::bigint AS objid, l.objsubid, l.pid,
    (extract(epoch FROM now.at - l.waitstart) * 1000000)::bigint AS waited,
    CASE WHEN a.state = 'idle' THEN (extract(epoch FROM now.at - a.state_change) * 1000000)::bigint END AS idle,
    a.usename || COALESCE('@' || pg_catalog.host(a.client_addr), '') AS client, a.application_name, a.query
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid,
    (SELECT pg_catalog.clock_timestamp() AS at) AS now
WHERE l.locktype = 'advisory' AND {condition}
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
ORDER BY l.granted DESC, l.waitstart, l.pid
