-- Takes an advisory lock, and draws its token after the grant. The session then may be silent for the
-- given time. On another session than the client's, nothing is done.
-- In: comment: the claim; tag: that of the client's session; function: the lock function, which tries
-- or waits; key: its arguments; schema and bucket of the fence; silence: milliseconds; who:
-- application name.
-- Out: a row with `result`: `true` if the session owns the lock, `false` if another session owns it,
-- `swapped` on another session; and `token`.
{comment}WITH l AS MATERIALIZED (
    SELECT CASE WHEN pg_catalog.current_setting('dlock.tag', true) = '{tag}' THEN
        (pg_catalog.set_config('application_name', '{who}', false) IS NOT NULL
            AND pg_catalog.{function}({key})::text <> 'false') END AS is_granted
), drawn AS (
    INSERT INTO {schema}.fence AS f (bucket, last)
        SELECT {bucket}, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint FROM l WHERE is_granted
    ON CONFLICT (bucket) DO UPDATE SET last = greatest(f.last + 1, excluded.last) RETURNING f.last
)
SELECT COALESCE(is_granted::text, 'swapped') AS result, (SELECT last FROM drawn) AS token,
    CASE WHEN is_granted IS NOT NULL THEN pg_catalog.set_config('idle_session_timeout', '{silence}', false) END AS silence
FROM l
