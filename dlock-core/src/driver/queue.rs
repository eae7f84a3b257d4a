//! Whose turn is it: the one rule behind fair and read/write locks, as pure functions over a queue.

use super::{ClaimId, Kind};

/// A claim's place in the queue of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose it is.
    pub id: ClaimId,
    /// How it wants to hold.
    pub kind: Kind,
}

/// The answer of [`turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The claim holds the lock.
    Mine,
    /// The nearest claim ahead that must leave first. It is the one to watch.
    Behind(Entry),
    /// The claim is not in the queue.
    Absent,
}

/// Whose turn is it? `queue` holds the claims of one lock in order of arrival.
///
/// A stale snapshot of the queue does no harm, because claims ahead can only leave. The store must promise one thing for
/// that: no claim ever appears ahead of one that was already seen.
pub fn turn(queue: &[Entry], id: ClaimId) -> Turn {
    let Some(at) = queue.iter().position(|entry| entry.id == id) else { return Turn::Absent };
    let me = queue[at];
    match queue[..at].iter().rfind(|ahead| !me.kind.shares_with(ahead.kind)) {
        Some(ahead) => Turn::Behind(*ahead),
        None => Turn::Mine,
    }
}

/// The claims that wait for `id`, that is, whose [`turn`] is to be behind it. They must be woken when it leaves.
///
/// These are the readers right behind an exclusive claim. The first exclusive claim behind `id` is one too, unless another
/// claim that it must wait for is nearer to it.
pub fn watchers(queue: &[Entry], id: ClaimId) -> impl Iterator<Item = Entry> {
    let at = queue.iter().position(|entry| entry.id == id);
    let (me, behind) = match at {
        Some(at) => (Some(queue[at]), &queue[at + 1..]),
        None => (None, &queue[..0]),
    };
    let readers = behind.iter().take_while(|entry| entry.kind == Kind::Read).count();
    let exclusive = behind.get(readers).filter(move |_| readers == 0);
    let readers = if me.is_some_and(|me| me.kind != Kind::Read) { &behind[..readers] } else { &behind[..0] };
    readers.iter().chain(exclusive).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(kinds: &[Kind]) -> Vec<Entry> {
        kinds.iter().map(|&kind| Entry { id: ClaimId::random(), kind }).collect()
    }

    fn kinds() -> impl Strategy<Value = Vec<Kind>> {
        prop::collection::vec(prop::sample::select(Kind::ALL), 0..12)
    }

    #[test]
    fn a_claim_that_is_not_queued_is_absent() {
        assert_eq!(turn(&queue(&[Kind::Fair]), ClaimId::random()), Turn::Absent);
    }

    #[test]
    fn a_reader_behind_a_waiting_writer_waits() {
        let queue = queue(&[Kind::Read, Kind::Write, Kind::Read]);
        assert_eq!(turn(&queue, queue[2].id), Turn::Behind(queue[1]));
    }

    proptest! {
        #[test]
        fn those_whose_turn_it_is_may_all_hold_at_once(kinds in kinds()) {
            let queue = queue(&kinds);
            let holders: Vec<_> = queue.iter().filter(|e| turn(&queue, e.id) == Turn::Mine).collect();
            prop_assert!(queue.is_empty() || !holders.is_empty(), "somebody must be first");
            for (i, a) in holders.iter().enumerate() {
                for b in &holders[i + 1..] {
                    prop_assert!(a.kind.shares_with(b.kind));
                }
            }
        }

        #[test]
        fn a_turn_that_came_stays_while_others_leave(kinds in kinds(), gone in any::<prop::sample::Index>()) {
            let mut queue = queue(&kinds);
            let holders: Vec<_> = queue.iter().copied().filter(|e| turn(&queue, e.id) == Turn::Mine).collect();
            if !queue.is_empty() {
                let left = queue.remove(gone.index(queue.len()));
                for holder in holders.iter().filter(|h| h.id != left.id) {
                    prop_assert_eq!(turn(&queue, holder.id), Turn::Mine);
                }
            }
        }

        #[test]
        fn the_watchers_of_a_claim_are_those_behind_it(kinds in kinds()) {
            let queue = queue(&kinds);
            for ahead in &queue {
                let watching: Vec<_> = watchers(&queue, ahead.id).collect();
                let behind: Vec<_> =
                    queue.iter().copied().filter(|e| turn(&queue, e.id) == Turn::Behind(*ahead)).collect();
                prop_assert_eq!(watching, behind);
            }
        }
    }
}
