-- Ends a session. In: tag: the named lock that only this session has. Out: nothing. Nobody has it if the session has ended.
:writable;
KILL CONNECTION IS_USED_LOCK(:tag)
