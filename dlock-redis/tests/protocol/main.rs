//! What dlock says to a server, and what it makes of what the server and other programs say.

#[path = "../common/mod.rs"]
mod common;
mod flaws;
mod golden;
mod multilock;
mod plain;
mod unfit;
#[cfg(feature = "tracing")]
mod warnings;
