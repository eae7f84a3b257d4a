-- Deletes a claim, and rings those who wait for it. In: queue: the table; claim; bell: the doorbell.
-- Out: one changed row, or none if the claim was gone.
DELETE FROM :queue WHERE claim = :claim;
DO RELEASE_LOCK(:bell)
