-- Condition that the schema has all tables and functions of this version, in this revision or a
-- later one. The revision is in the body of a function, so a client that replaces the functions also
-- replaces the revision.
pg_catalog.to_regclass('{schema}.queue') IS NOT NULL AND COALESCE((
    SELECT pg_catalog.substring(p.prosrc, 'c_revision CONSTANT integer := ([0-9]+);')::numeric >= {revision}
    FROM pg_catalog.pg_proc AS p WHERE p.oid = pg_catalog.to_regproc('{schema}.take_2')
), false)
