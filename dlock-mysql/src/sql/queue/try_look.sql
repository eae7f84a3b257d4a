-- Part of attempt.sql for a try. Reads the queue without locks, before the transaction, whose own
-- reads would otherwise not see what other transactions commit after this one. If the claim cannot
-- hold, the transaction locks and changes nothing. On a read-only server the transaction has to
-- fail.
-- In: condition: try_condition.sql for the claims that have not expired.
-- Out: @dlock_busy: 1 if the claim cannot hold. A `SET` with a subquery would lock the rows. The
-- `SET` without one is first, because some proxies send a batch that begins with `SELECT` to a
-- replica.
SET @dlock_busy = 0;
SELECT NOT :read_only AND NOT :condition INTO @dlock_busy;
