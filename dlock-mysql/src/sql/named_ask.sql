-- Lets a watch answer. In: watch. Out: a row with 1 if this session kept the watch waiting until now, else 0.
SELECT COALESCE(RELEASE_LOCK(:watch), 0)
