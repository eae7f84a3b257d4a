-- In: nothing. Out: a row for each named lock that somebody has: the number of the session, and the lock's name.
:writable;
SELECT threads.processlist_id, locks.object_name
    FROM performance_schema.metadata_locks AS locks JOIN performance_schema.threads AS threads
        ON threads.thread_id = locks.owner_thread_id
    WHERE locks.object_type = 'USER LEVEL LOCK' AND locks.lock_status = 'GRANTED'
