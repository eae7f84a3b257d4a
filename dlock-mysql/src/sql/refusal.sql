-- A part of statements: an error, since a subquery has two rows. Stands where a server that is read-only is to refuse also what a user
-- with more rights may do there: others look for a server that takes writes, and so must this session. In: nothing.
(SELECT 1 UNION SELECT 2)
