//! Which commands dlock sends to a server, and how it reads what the server answers and other programs write.

#[path = "../common/mod.rs"]
mod common;
mod detach;
mod flaws;
mod golden;
mod multilock;
mod permits;
mod plain;
mod unfit;
#[cfg(feature = "tracing")]
mod warnings;
mod who;
