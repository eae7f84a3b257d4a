-- Renews a hold. From now on the session may be silent for the claim's ttl, also if it waited for the
-- lock. A session cannot lose the lock and keep its tag.
-- In: comment: the claim; tag: that of the client's session; silence: milliseconds.
-- Out: a row with `is_own`: whether this is the client's session.
{comment}SELECT COALESCE(pg_catalog.current_setting('dlock.tag', true) = '{tag}'
    AND pg_catalog.set_config('idle_session_timeout', '{silence}', false) IS NOT NULL, false)::text AS is_own
