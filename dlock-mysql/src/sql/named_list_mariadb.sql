-- In: nothing. Out: a row for each named lock that somebody has: the number of the session, and the lock's name.
:writable;
SELECT thread_id, table_schema FROM information_schema.metadata_lock_info WHERE lock_type = 'User lock'
