-- Returns a row with `is_complete`: whether the schema has all tables and functions of this
-- version, in this revision or a later one.
SELECT ({is_complete})::text AS is_complete
