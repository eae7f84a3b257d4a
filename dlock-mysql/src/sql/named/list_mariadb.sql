-- Lists all named locks that are owned, on MariaDB. In: nothing. Out: a row for each with `owner`:
-- the connection id of the owner; and `name`.
:writable;
SELECT thread_id AS owner, table_schema AS name FROM information_schema.metadata_lock_info WHERE lock_type = 'User lock'
