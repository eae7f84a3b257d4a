-- A part of statements: whether the server is read-only. MariaDB's variable is a number or, since 12.0, a word. In: nothing.
(CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@global.innodb_read_only)
