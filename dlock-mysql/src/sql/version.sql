-- In: store: the table. Out: a row with the version of the tables.
SELECT version FROM :store WHERE one = 1
