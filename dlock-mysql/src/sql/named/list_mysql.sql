-- Lists all named locks that are owned, on MySQL. In: nothing. Out: a row for each with `owner`:
-- the connection id of the owner; and `name`.
:writable;
SELECT threads.processlist_id AS owner, locks.object_name AS name
    FROM performance_schema.metadata_locks AS locks JOIN performance_schema.threads AS threads
        ON threads.thread_id = locks.owner_thread_id
    WHERE locks.object_type = 'USER LEVEL LOCK' AND locks.lock_status = 'GRANTED'
