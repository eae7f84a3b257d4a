-- A part of renew.sql, in a row of the queue: looks at the doorbell of a claim, and takes it if no session has it.
-- In: bell: the doorbell of the row's claim. Out: the number of the session that has the doorbell, or 0.
COALESCE(IS_USED_LOCK(:bell), IF(GET_LOCK(:bell, 0) = 1, CONNECTION_ID(), 0))
