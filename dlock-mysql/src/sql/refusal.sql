-- A part of statements: an error on a server that is read-only, since no number is greater, else of no use. So it refuses also what a
-- user with more rights may do there: others look for a server that takes writes, and so must this session. In: nothing.
(~0 + :read_only)
