//! The table of cases. Each file has one topic and lists its cases. The name of a case is a
//! sentence that can be false.

mod cancel;
mod client;
mod close;
mod crowd;
mod detached;
mod downgrade;
mod election;
mod endurance;
mod exclusive;
mod fair;
mod handover;
mod hold;
mod kinds;
mod late;
mod look;
mod loss;
mod margin;
mod multi;
mod name;
mod network;
mod newcomer;
mod observer;
mod once;
mod option;
mod outage;
mod owner;
mod race;
mod resent;
mod restart;
mod rwlock;
mod semaphore;
mod semaphore_stress;
mod silent;
mod stay;
mod stress;
mod ticket;
mod token;
mod who;

pub use crate::case::Case;

/// Returns all cases, in the order in which they run.
pub fn all() -> Vec<Case> {
    [
        exclusive::cases(),
        stress::cases(),
        race::cases(),
        fair::cases(),
        rwlock::cases(),
        semaphore::cases(),
        semaphore_stress::cases(),
        kinds::cases(),
        downgrade::cases(),
        cancel::cases(),
        hold::cases(),
        detached::cases(),
        handover::cases(),
        ticket::cases(),
        silent::cases(),
        stay::cases(),
        once::cases(),
        loss::cases(),
        margin::cases(),
        newcomer::cases(),
        outage::cases(),
        network::cases(),
        late::cases(),
        resent::cases(),
        crowd::cases(),
        endurance::cases(),
        restart::cases(),
        token::cases(),
        name::cases(),
        owner::cases(),
        look::cases(),
        who::cases(),
        election::cases(),
        observer::cases(),
        multi::cases(),
        client::cases(),
        close::cases(),
        option::cases(),
    ]
    .concat()
}
