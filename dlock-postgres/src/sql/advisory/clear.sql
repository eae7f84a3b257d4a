-- Releases all advisory locks of a session whose wait was ended. In: tag: that of the client's session.
-- Out: a row with `is_own`: whether this is the client's session.
SELECT COALESCE(CASE WHEN pg_catalog.current_setting('dlock.tag', true) = '{tag}'
    THEN pg_catalog.pg_advisory_unlock_all()::text = '' END, false)::text AS is_own
