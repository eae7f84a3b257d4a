-- Ends a session that waits. In: id: of the session. Out: nothing.
KILL CONNECTION :id
