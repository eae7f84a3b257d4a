-- Reads the version of the tables. In: store: the table. Out: a row with `version`.
SELECT version FROM :store WHERE one = 1
