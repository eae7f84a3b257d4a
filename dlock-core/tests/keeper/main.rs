//! The engine with a store that follows a script, for behaviour that no real store shows on demand.

mod admission;
mod contend;
mod detach;
mod downgrade;
mod ending;
mod hold;
mod margin;
mod release;
mod script;
mod settle;
mod stay;
mod ticket;
#[path = "../watchdog/mod.rs"]
mod watchdog;
