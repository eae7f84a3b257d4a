//! The table of cases: each a sentence that can be false, in the file of its topic. Each file lists its own.

mod cancel;
mod client;
mod close;
mod downgrade;
mod exclusive;
mod fair;
mod hold;
mod kinds;
mod line;
mod look;
mod loss;
mod name;
mod newcomer;
mod option;
mod outage;
mod owner;
mod race;
mod restart;
mod rwlock;
mod stress;
mod token;

pub use crate::case::Case;

/// All of them, in the order in which they are run.
pub fn all() -> Vec<Case> {
    [
        exclusive::cases(),
        stress::cases(),
        race::cases(),
        fair::cases(),
        rwlock::cases(),
        kinds::cases(),
        downgrade::cases(),
        cancel::cases(),
        hold::cases(),
        loss::cases(),
        newcomer::cases(),
        outage::cases(),
        line::cases(),
        restart::cases(),
        token::cases(),
        name::cases(),
        owner::cases(),
        look::cases(),
        client::cases(),
        close::cases(),
        option::cases(),
    ]
    .concat()
}
