-- Ends what a session is at, and not the session. In: id: of the session. Out: nothing.
KILL QUERY :id
