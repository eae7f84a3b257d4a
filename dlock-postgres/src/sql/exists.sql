-- Returns a row with `is_complete`: whether the schema has all tables and functions of this
-- version, in this revision or a later one.
SELECT (pg_catalog.to_regclass('{schema}.queue') IS NOT NULL
    AND COALESCE(pg_catalog.substring(
        pg_catalog.obj_description(pg_catalog.to_regproc('{schema}.take_2'), 'pg_proc'), '^revision ([0-9]+)$'
    )::numeric >= {revision}, false))::text AS is_complete
