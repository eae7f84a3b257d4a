-- Part of renew.sql, evaluated for each row of the queue: takes the doorbell of the row's claim if
-- no session owns it. In: bell: the doorbell. Value: the connection id of the doorbell's owner, or
-- 0.
COALESCE(IS_USED_LOCK(:bell), IF(GET_LOCK(:bell, 0) = 1, CONNECTION_ID(), 0))
