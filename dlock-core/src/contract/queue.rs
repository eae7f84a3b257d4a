//! The order of claims: one rule for fair locks, read/write locks and permits, as pure functions
//! over a queue.

use std::num::NonZeroU32;

use crate::model::{ClaimId, Kind};

/// A claim in the queue of its lock.
///
/// ```
/// use dlock_core::{ClaimId, Kind, driver::{Entry, Turn, turn}};
/// use std::num::NonZeroU32;
/// let limit = NonZeroU32::new(2).expect("not zero");
/// let permit = |byte| Entry::new(ClaimId::from_bytes([byte; 16]), Kind::Permit).limit(limit);
/// let queue = [1, 2, 3].map(permit);
/// assert_eq!(turn(&queue, queue[1].id), Turn::Mine);
/// assert_eq!(turn(&queue, queue[2].id), Turn::Behind(queue[1]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Id of the claim.
    pub id: ClaimId,
    /// Kind in which the claim holds the lock, or waits for it.
    pub kind: Kind,
    /// Maximum number of claims that may hold together, according to this claim. Applies to
    /// [`Kind::Permit`] only. Default: 1.
    pub limit: NonZeroU32,
}

impl Entry {
    /// Creates an entry with a limit of one.
    pub const fn new(id: ClaimId, kind: Kind) -> Self {
        Self { id, kind, limit: NonZeroU32::MIN }
    }

    /// Sets the limit.
    #[must_use]
    pub const fn limit(mut self, limit: NonZeroU32) -> Self {
        self.limit = limit;
        self
    }
}

/// Result of [`turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The claim holds the lock.
    Mine,
    /// The claim waits for this entry, the nearest claim ahead that must leave first.
    ///
    /// A permit that has only permits ahead can get its turn when any of them leaves. The entry is
    /// then the permit directly ahead, and [`watched`] returns all that the claim must watch.
    Behind(Entry),
    /// The claim is not in the queue.
    Absent,
}

/// Returns whether the claim `id` holds the lock, waits for it, or is absent. `queue` has the
/// claims of one lock in order of arrival.
///
/// A permit holds if all claims ahead are permits and their number is less than the smallest limit
/// among the permit and those ahead. So even if clients use different limits, the number of holders
/// never exceeds the limit of any of them.
///
/// A stale snapshot of the queue is harmless, because claims ahead can only leave. This requires
/// that the store never inserts a claim ahead of a visible one.
pub fn turn(queue: &[Entry], id: ClaimId) -> Turn {
    let Some(at) = index_of(queue, id) else { return Turn::Absent };
    let (own, ahead) = (queue[at], &queue[..at]);
    let blocker = match own.kind {
        Kind::Permit => ahead.iter().rfind(|ahead| ahead.kind != Kind::Permit).or_else(|| {
            let waits = held_permits(queue.iter()) <= at;
            ahead.last().filter(|_| waits)
        }),
        kind => ahead.iter().rfind(|ahead| !kind.shares_with(ahead.kind)),
    };
    blocker.map_or(Turn::Mine, |blocker| Turn::Behind(*blocker))
}

/// Returns the claims that must be woken when the claim `id` leaves:
///
/// - The permits whose turn comes when `id` leaves. If `id` is a permit that holds, this is the
///   first waiting permit. There are several if `id` is an exclusive claim, or if its limit is
///   smaller than that of others. There is none if `id` is a waiting permit whose limit held no
///   other permit back.
/// - The other claims whose [`turn`] is `Behind` the claim `id`. If `id` is not a reader, these are
///   the readers directly behind it. The first exclusive claim behind `id` is also included, unless
///   a nearer claim blocks it.
pub fn watchers(queue: &[Entry], id: ClaimId) -> impl Iterator<Item = Entry> {
    let at = index_of(queue, id);
    let (own, behind) = match at {
        Some(at) => (Some(queue[at]), &queue[at + 1..]),
        None => (None, &queue[..0]),
    };
    let readers = behind.iter().take_while(|entry| entry.kind == Kind::Read).count();
    let exclusive = behind.get(readers).filter(|entry| readers == 0 && entry.kind != Kind::Permit);
    let readers =
        if own.is_some_and(|own| own.kind != Kind::Read) { &behind[..readers] } else { &behind[..0] };
    let permits = at.map(|at| {
        let held = held_permits(queue.iter());
        // Counted in the queue without `id`. With `id`, each permit behind it has an index one
        // higher.
        let will_hold = held_permits(queue[..at].iter().chain(behind)) + 1;
        queue.get(held.max(at + 1)..will_hold).unwrap_or_default()
    });
    readers.iter().chain(exclusive).chain(permits.unwrap_or_default()).copied()
}

/// Returns the claims ahead that the waiting claim `id` must watch, in a store that can only watch
/// single claims. At least one of them leaves before the turn of `id` comes. Empty if `id` holds or
/// is absent.
///
/// Most claims watch only the claim that [`Turn::Behind`] names. A permit with only permits ahead
/// must watch several, because any of them may leave first. These are the nearest permits, as many
/// as are enough to block the waiting one. A permit with the limit N therefore watches at most N
/// other claims. A claim that leaves is watched by no more claims than may hold together,
/// however long the queue is.
pub fn watched(queue: &[Entry], id: ClaimId) -> &[Entry] {
    let (Some(at), Turn::Behind(blocker)) = (index_of(queue, id), turn(queue, id)) else { return &[] };
    let nearest = index_of(queue, blocker.id).unwrap_or(at);
    let ahead = &queue[..=nearest];
    let mut smallest_limit = limit(&queue[at]);
    let is_enough = |(index, entry): (usize, &Entry)| {
        smallest_limit = smallest_limit.min(limit(entry));
        blocker.kind != Kind::Permit || queue[at].kind != Kind::Permit || index + 1 >= smallest_limit
    };
    let count = ahead.iter().rev().enumerate().position(is_enough).map_or(ahead.len(), |index| index + 1);
    &ahead[ahead.len() - count..]
}

fn index_of(queue: &[Entry], id: ClaimId) -> Option<usize> {
    queue.iter().position(|entry| entry.id == id)
}

/// Returns the number of permits at the head of the queue that hold.
fn held_permits<'a>(queue: impl Iterator<Item = &'a Entry>) -> usize {
    let mut smallest_limit = usize::MAX;
    let holds = |(ahead, entry): &(usize, &Entry)| {
        smallest_limit = smallest_limit.min(limit(entry));
        *ahead < smallest_limit
    };
    queue.take_while(|entry| entry.kind == Kind::Permit).enumerate().take_while(holds).count()
}

fn limit(entry: &Entry) -> usize {
    usize::try_from(entry.limit.get()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
