-- A part of batches, at the beginning of a SET: refuses on a server that is read-only. In: nothing.
SET @dlock_writable = :refusal
