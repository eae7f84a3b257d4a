-- Ends the statement of a session, but not the session. In: tag: the named lock that only this
-- session owns. Out: nothing. If the session has ended, no session owns the tag, and the server
-- replies with an error.
:writable;
KILL QUERY IS_USED_LOCK(:tag)
