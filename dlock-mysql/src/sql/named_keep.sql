-- Takes the named lock that a watch waits for. In: watch. Out: a row with 1 if this session has it, else 0.
SELECT COALESCE(GET_LOCK(:watch, 0), 0)
