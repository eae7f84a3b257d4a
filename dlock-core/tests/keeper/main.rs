//! The engine against a store that follows a script: what no real store shows on demand.

mod admission;
mod contend;
mod detach;
mod downgrade;
mod ending;
mod hold;
mod release;
mod script;
mod stay;
mod ticket;
#[path = "../watchdog/mod.rs"]
mod watchdog;
