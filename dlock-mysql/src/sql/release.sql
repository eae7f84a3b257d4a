-- Deletes a claim, under its own id or that of the ticket it was detached as, and rings those who wait for it.
-- In: queue: the table; name; claims: a list; ring: what rings the doorbell, or 0.
-- Out: one changed row, or none if the claim was gone; and a row with the number of the session.
:writable;
DELETE FROM :queue WHERE claim IN (:claims) AND name = :name;
DO :ring;
SELECT CONNECTION_ID()
