//! The order of the members. States that differ only in the numbers of the members are one state.

use super::{
    MEMBERS,
    member::{Member, Part},
    state::{CLIENTS, State},
};

impl State {
    /// Renumbers the members, so that states that differ only in their numbers are one state.
    pub(super) fn renumbered(self) -> Self {
        let mut order = [0, 1, 2];
        order.sort_by_key(|member| self.sort_key(*member));
        if order == [0, 1, 2] { self } else { self.in_order(order) }
    }

    /// Returns everything about a member that does not refer to the number of another.
    fn sort_key(&self, member: usize) -> (Member, [Part; CLIENTS], [u8; 2 * CLIENTS]) {
        let parts = [0, 1].map(|at| Part { confirmed_by: 0, ..self.clients[at].parts[member] });
        let bits = |at: usize| {
            let round = self.clients[at].round.map_or([0; 3], |it| [it.pending, it.replied, it.renewed]);
            round.map(|bits| bits >> member & 1).iter().fold(0, |all, bit| all << 1 | bit)
        };
        let confirmed = |at: usize| self.clients[at].reconfirmed_by >> member & 1;
        (self.members[member], parts, [bits(0), bits(1), confirmed(0), confirmed(1)])
    }

    fn in_order(&self, order: [usize; MEMBERS]) -> Self {
        let mut state = self.clone();
        state.members = order.map(|member| self.members[member]);
        for (client, former) in state.clients.iter_mut().zip(&self.clients) {
            client.parts = order.map(|member| {
                let part = former.parts[member];
                Part { confirmed_by: bits_in_order(part.confirmed_by, order), ..part }
            });
            client.reconfirmed_by = bits_in_order(former.reconfirmed_by, order);
            if let Some(round) = &mut client.round {
                for bits in [&mut round.pending, &mut round.replied, &mut round.renewed] {
                    *bits = bits_in_order(*bits, order);
                }
            }
        }
        state
    }
}

fn bits_in_order(bits: u8, order: [usize; MEMBERS]) -> u8 {
    (0..MEMBERS).filter(|at| bits & 1 << order[*at] != 0).fold(0, |all, at| all | 1 << at)
}
