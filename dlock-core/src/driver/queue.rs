//! Whose turn is it: the one rule behind fair locks, read/write locks and permits, as pure functions over a queue.

use std::num::NonZeroU32;

use super::{ClaimId, Kind};

/// A claim's place in the queue of its lock.
///
/// ```
/// use dlock_core::{ClaimId, Kind, driver::{Entry, Turn, turn}};
/// use std::num::NonZeroU32;
/// let two = NonZeroU32::new(2).expect("not zero");
/// let queue = [1, 2, 3].map(|byte| Entry::new(ClaimId::from_bytes([byte; 16]), Kind::Permit).limit(two));
/// assert_eq!(turn(&queue, queue[1].id), Turn::Mine);
/// assert_eq!(turn(&queue, queue[2].id), Turn::Behind(queue[1]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The id of the claim.
    pub id: ClaimId,
    /// How the claim wants to hold.
    pub kind: Kind,
    /// How many claims may hold together, as this claim says. Counts for [`Kind::Permit`] only, and is 1 unless it is set.
    pub limit: NonZeroU32,
}

impl Entry {
    /// The place of a claim. A permit has a limit of one.
    pub const fn new(id: ClaimId, kind: Kind) -> Self {
        Self { id, kind, limit: NonZeroU32::MIN }
    }

    /// The same with another limit.
    #[must_use]
    pub const fn limit(mut self, limit: NonZeroU32) -> Self {
        self.limit = limit;
        self
    }
}

/// The answer of [`turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The claim holds the lock.
    Mine,
    /// The nearest claim ahead that must leave first. It is the one to watch.
    ///
    /// A permit that has only permits ahead need not wait for one of them: any may leave first. Then this is the permit
    /// directly ahead, and those to watch are [`watched`].
    Behind(Entry),
    /// The claim is not in the queue.
    Absent,
}

/// Whose turn is it? `queue` holds the claims of one lock in order of arrival.
///
/// A permit holds if only permits are ahead of it, and fewer than the smallest limit that it or any of those ahead named.
/// So while clients change from one limit to another, no claim holds beside more others than its own limit allows.
///
/// A stale snapshot of the queue does no harm, because claims ahead can only leave. The store must promise one thing for
/// that: no claim ever appears ahead of one that was already seen.
pub fn turn(queue: &[Entry], id: ClaimId) -> Turn {
    let Some(at) = place(queue, id) else { return Turn::Absent };
    let (me, ahead) = (queue[at], &queue[..at]);
    let foe = match me.kind {
        Kind::Permit => ahead.iter().rfind(|ahead| ahead.kind != Kind::Permit).or_else(|| {
            let waits = permits(queue.iter()) <= at;
            ahead.last().filter(|_| waits)
        }),
        kind => ahead.iter().rfind(|ahead| !kind.shares_with(ahead.kind)),
    };
    foe.map_or(Turn::Mine, |foe| Turn::Behind(*foe))
}

/// The claims that must be woken when `id` leaves.
///
/// - The permits whose turn comes when `id` leaves. If `id` is a permit that holds, that is the first permit that waits. There
///   are several if `id` is an exclusive claim, or has a smaller limit than others. There is none if `id` is a permit that
///   was not granted yet and kept nobody out.
/// - The other claims whose [`turn`] is `Behind` the claim `id`. If that claim is no reader, these are the readers right behind
///   it. The first exclusive claim behind `id` is one too, unless a nearer claim keeps that exclusive claim out.
pub fn watchers(queue: &[Entry], id: ClaimId) -> impl Iterator<Item = Entry> {
    let at = place(queue, id);
    let (me, behind) = match at {
        Some(at) => (Some(queue[at]), &queue[at + 1..]),
        None => (None, &queue[..0]),
    };
    let readers = behind.iter().take_while(|entry| entry.kind == Kind::Read).count();
    let exclusive = behind.get(readers).filter(|entry| readers == 0 && entry.kind != Kind::Permit);
    let readers = if me.is_some_and(|me| me.kind != Kind::Read) { &behind[..readers] } else { &behind[..0] };
    let permits = at.map(|at| {
        let held = permits(queue.iter());
        // The queue without `id`. A permit behind `id` stands one place further in the queue with it.
        let will_hold = permits(queue[..at].iter().chain(behind)) + 1;
        queue.get(held.max(at + 1)..will_hold).unwrap_or_default()
    });
    readers.iter().chain(exclusive).chain(permits.unwrap_or_default()).copied()
}

/// The claims ahead of a waiting claim that a store must watch if it can only watch single claims: once it is the turn of
/// `id`, at least one of them has left. Empty if `id` holds or is absent.
///
/// Most claims watch the one claim that [`Turn::Behind`] names. A permit with only permits ahead must watch several, because
/// any of them may leave first. These are the nearest permits, as many as are enough to keep the waiting one out. So a permit
/// watches no more others than its own limit lets hold. And no more claims watch a claim that leaves than may hold together,
/// however long the queue is.
pub fn watched(queue: &[Entry], id: ClaimId) -> &[Entry] {
    let (Some(at), Turn::Behind(foe)) = (place(queue, id), turn(queue, id)) else { return &[] };
    let nearest = place(queue, foe.id).unwrap_or(at);
    let ahead = &queue[..=nearest];
    let mut least = limit(&queue[at]);
    let is_enough = |(index, one): (usize, &Entry)| {
        least = least.min(limit(one));
        foe.kind != Kind::Permit || queue[at].kind != Kind::Permit || index + 1 >= least
    };
    let count = ahead.iter().rev().enumerate().position(is_enough).map_or(ahead.len(), |index| index + 1);
    &ahead[ahead.len() - count..]
}

fn place(queue: &[Entry], id: ClaimId) -> Option<usize> {
    queue.iter().position(|entry| entry.id == id)
}

/// How many permits at the head of the queue hold.
fn permits<'a>(queue: impl Iterator<Item = &'a Entry>) -> usize {
    let mut least = usize::MAX;
    let holds = |(ahead, entry): &(usize, &Entry)| {
        least = least.min(limit(entry));
        *ahead < least
    };
    queue.take_while(|entry| entry.kind == Kind::Permit).enumerate().take_while(holds).count()
}

fn limit(entry: &Entry) -> usize {
    usize::try_from(entry.limit.get()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
