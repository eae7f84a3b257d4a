//! The engine against a store that follows a script: what no real store shows on demand.

mod contend;
mod downgrade;
mod ending;
mod hold;
mod release;
mod script;
#[path = "../watchdog/mod.rs"]
mod watchdog;
