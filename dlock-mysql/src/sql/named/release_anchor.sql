-- Makes a watch reply. In: anchor. Out: a row with `is_released`: 1 if this session owned the
-- anchor, so that the watch waited until now.
SELECT COALESCE(RELEASE_LOCK(:anchor), 0) AS is_released
