-- Reads the claims that are not detached. In: nothing.
-- Out: a row for each with its client, its time of arrival and its expiry.
SELECT client, since, expires FROM dlock_queue WHERE until IS NULL
