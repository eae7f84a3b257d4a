-- Deletes a claim, and rings those who wait for it. In: queue: the table; claim; ring: what rings the doorbell, or 0.
-- Out: one changed row, or none if the claim was gone; and a row with the number of the session.
:writable;
DELETE FROM :queue WHERE claim = :claim;
DO :ring;
SELECT CONNECTION_ID()
