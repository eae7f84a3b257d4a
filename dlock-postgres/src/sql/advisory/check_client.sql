-- Makes the server notice within a second that the client of a waiting session has ended. Fails on a
-- platform that does not support it. Out: nothing.
SELECT pg_catalog.set_config('client_connection_check_interval', '1000', false)
