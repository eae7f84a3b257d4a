-- Ends what a session is at, and not the session. In: tag: the named lock that only this session has. Out: nothing. Nobody has it
-- if the session has ended.
:writable;
KILL QUERY IS_USED_LOCK(:tag)
