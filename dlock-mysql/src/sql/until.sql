-- Says until when the next statements may act, by the server's clock. In: until: microseconds since 1970. Out: nothing.
SET @dlock_until = :until;
