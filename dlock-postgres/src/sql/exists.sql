-- Returns a row with `is_complete`: whether the schema has all tables and functions of this version.
SELECT (pg_catalog.to_regclass('{schema}.queue') IS NOT NULL
    AND pg_catalog.to_regproc('{schema}.take_2') IS NOT NULL)::text AS is_complete
