-- Wakes the waiters of a claim that stays in the queue, and takes its doorbell again after them.
-- In: bell: the doorbell. Out: nothing.
DO RELEASE_LOCK(:bell);
DO GET_LOCK(:bell, 1)
