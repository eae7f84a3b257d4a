-- Part of statements. Raises an error on a read-only server, because the sum exceeds the largest
-- number. On other servers the value has no meaning. Also refuses users whose rights let them write
-- on a read-only server, because other clients look for a server that accepts writes. In: nothing.
(~0 + :read_only)
