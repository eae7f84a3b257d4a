-- Part of statements: 1 if the server is read-only. The variable of MariaDB is a number, and since
-- 12.0 a word. In: nothing.
(CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@global.innodb_read_only)
