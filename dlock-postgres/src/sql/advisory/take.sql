-- Takes an advisory lock, and draws its token after the grant. The session then may be silent for the
-- given time. On another session than the client's, nothing is done. One function call, because the
-- server plans a statement that is sent as text each time.
-- In: comment: the claim; tag: that of the client's session; who: application name; function: the lock
-- function, which tries or waits; key: its arguments; schema and bucket of the fence; silence:
-- milliseconds.
-- Out: a row with `token`: 0 if another session owns the lock, and NULL on another session.
{comment}SELECT {schema}.take_2(
    CASE WHEN pg_catalog.current_setting('dlock.tag', true) = '{tag}'
        AND pg_catalog.set_config('application_name', '{who}', false) IS NOT NULL
    THEN pg_catalog.{function}({key})::text <> 'false' END, {bucket}, '{silence}') AS token
