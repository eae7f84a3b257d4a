-- Prepares a session for locks. No setting of the role may end a wait or a hold, grants wait for
-- the disk, and a setting that only this session has identifies it. In: tag: text that identifies
-- the session. Out: nothing that is used. `identify.sql` identifies the session.
SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN
    ('statement_timeout', 'lock_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout');
SELECT pg_catalog.set_config('synchronous_commit', 'on', false)
    WHERE pg_catalog.current_setting('synchronous_commit') = 'off';
SELECT pg_catalog.set_config('dlock.tag', '{tag}', false)
