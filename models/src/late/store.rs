//! The store, and its execution of requests.

use super::{
    Late, Mutation, Operation,
    state::{HOLDER, State},
};

/// Time for which the store keeps a hold after a request for it.
const TTL: u8 = 2;
/// Time for which the store keeps a hold that the first holder has detached.
const LASTING: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredHold {
    /// The client whose claim holds. `None` is the ticket.
    pub(super) id: Option<usize>,
    pub(super) is_detached: bool,
    pub(super) left: u8,
}

impl State {
    /// Executes a request in the store. Returns whether the client has the hold, or the ticket has
    /// it after a detachment.
    pub(super) fn execute(&mut self, model: &Late, client: usize, operation: Operation) -> bool {
        let own = Some(client);
        let is_own = self.hold.is_some_and(|hold| hold.id == own);
        let is_detached = self.is_detached();
        let lasting = if client == HOLDER { LASTING } else { TTL };
        match operation {
            Operation::Attempt if is_own => self.extend(TTL),
            Operation::Attempt if self.is_free() => self.set(own, false, TTL),
            Operation::Attempt => return false,
            Operation::Renew if model.mutated(Mutation::RenewalShortens) && is_own => {
                self.set(own, is_detached, TTL);
            }
            Operation::Renew if is_own || model.mutated(Mutation::RenewsAnyHold) => self.extend(TTL),
            Operation::Renew if model.mutated(Mutation::RenewsDeletedClaim) && self.is_free() => {
                self.set(own, false, TTL);
            }
            Operation::Renew => return false,
            Operation::Detach if is_own && !is_detached => {
                self.set(own.filter(|_| model.keeps_id()), true, lasting);
            }
            Operation::Detach if is_detached => self.extend(lasting),
            Operation::Detach => return false,
            Operation::Resume if is_own && !is_detached => self.extend(TTL),
            Operation::Resume if is_detached => self.set(own, false, TTL),
            Operation::Resume => return false,
            Operation::Release | Operation::ReleaseOrTicket => {
                let is_ticket = is_detached && operation == Operation::ReleaseOrTicket;
                if is_own || is_ticket || model.mutated(Mutation::ReleasesAnyHold) {
                    self.hold = None;
                }
                return false;
            }
        }
        self.hold.is_some()
    }

    fn set(&mut self, id: Option<usize>, is_detached: bool, left: u8) {
        self.hold = Some(StoredHold { id, is_detached, left });
    }

    /// Extends the hold. Never shortens it.
    fn extend(&mut self, left: u8) {
        self.hold = self.hold.map(|hold| StoredHold { left: hold.left.max(left), ..hold });
    }
}
