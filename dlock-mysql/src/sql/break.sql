-- Deletes claims. In: queue: the table; claims: a list. Out: as many changed rows as were there.
:writable;
DELETE FROM :queue WHERE claim IN (:claims)
