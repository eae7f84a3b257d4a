-- Part of batches, at the beginning of a SET: raises an error on a read-only server. In: nothing.
SET @dlock_writable = :refusal
