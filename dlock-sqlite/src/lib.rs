//! One SQLite file, many processes, one host.
