-- Takes the named lock that a watch waits for. A server that has become read-only refuses: new sessions are on another one.
-- In: watch. Out: a row with 1 if this session has it, else 0.
:writable;
SELECT COALESCE(GET_LOCK(:watch, 0), 0)
