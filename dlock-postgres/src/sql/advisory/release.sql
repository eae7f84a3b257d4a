-- Releases an advisory lock. In: tag: that of the client's session; function: the unlock function; key:
-- its arguments. Out: a row with `had_lock`: whether this session owned it.
SELECT COALESCE(CASE WHEN pg_catalog.current_setting('dlock.tag', true) = '{tag}'
    THEN pg_catalog.{function}({key}) END, false)::text AS had_lock
