//! Stores with one planted bug each, which a suite worth its name catches: the test of the tests.
//!
//! All are one copy of the memory store. For a bug that an engine could have, this has the nearest form that a driver can
//! have.

mod net;
mod shelf;
mod store;

pub use net::{LineBug, WrongServer};
pub use store::WrongStore;

/// What is wrong with a [`WrongStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bug {
    /// Nothing: it must pass.
    None,
    /// A release frees the lock, whoever holds it.
    ReleaseWithoutOwnerCheck,
    /// The release of a claim that is gone removes the next holder.
    ReleaseOfALostClaimRemovesTheNext,
    /// A renewal puts a claim that is gone back into the store.
    RenewalCreates,
    /// A renewal of a claim that is gone extends the present holder's claim, and says that all is well.
    RenewalExtendsAnybody,
    /// Silent claims are never forgotten.
    ExpiryIgnored,
    /// Silent claims are forgotten after half of what was promised.
    ExpiryEarly,
    /// Every grant has the same token.
    TokenStandsStill,
    /// A claim that asks again gets another token, also in a downgrade.
    TokenGrowsOnAsking,
    /// The token of a holder that was forgotten is given to a newcomer.
    TokenReusedAfterExpiry,
    /// Tokens begin anew when nobody is left.
    TokenRestarts,
    /// A reader is let in beside a writer.
    ReaderBesideWriter,
    /// A writer is let in beside readers.
    WriterBesideReaders,
    /// A reader joins other readers although a writer waits.
    ReaderPassesWriter,
    /// The waiter that came last is next.
    LastComeFirst,
    /// A silent claim is forgotten only if it held.
    DeadWaiterStays,
    /// When a silent claim is forgotten, the last in the queue takes its place.
    BurialShiftsOrder,
    /// A release removes only what holds.
    WaiterStaysOnCancel,
    /// A release does not remove a claim whose turn has come, if the claim was not told of its turn yet.
    HoldStaysOnCancel,
    /// Of several claims whose turn has come only one is woken.
    SecondWaiterNotWoken,
    /// Lost on release: when a reader leaves, the others are told that they are gone.
    LostOnRelease,
    /// A release of a claim that is gone says that it was there.
    ReleaseSeesNoLoss,
    /// Lost never: a renewal always says that all is well, even if the claim is gone.
    NeverLost,
    /// Valid from receipt: the first answer to a claim takes a while, and the driver counts the validity from that answer,
    /// not from before the request.
    ValidFromReceipt,
    /// A claim that asks again gets a second place in the queue.
    AskingTwiceEntersTwice,
    /// Names that differ in case only are one lock.
    NamesIgnoreCase,
    /// A claim for a name that nobody used before looks whether it is free, and enters the queue in a second step: there is
    /// no row to lock yet.
    NoRowLock,
    /// Tokens begin at 1, not at the clock.
    NoTokenFloor,
    /// Every client has an identity of its own.
    IdentityPerClient,
    /// A claim that was downgraded gets no hints: there is one bell for each id, and it went with the claim that was
    /// replaced.
    DeafDowngrade,
    /// The store keeps a bell for each name that was ever used.
    BellsStay,
    /// One permit too many is granted.
    PermitOffByOne,
    /// A permit is granted if the limit that it names itself allows it, whatever limits the others named.
    PermitSeesOwnLimitOnly,
    /// A dead holder's permit is lost: a silent claim that holds a permit is never forgotten.
    DeadPermitLost,
    /// A permit that is given back wakes all who wait.
    PermitWakesAll,
    /// A detached hold ends with its client: when that is killed or closed.
    DetachedDiesWithItsClient,
    /// A detached hold never ends by itself, although nobody renews it.
    DetachedForEver,
    /// A detachment puts a claim that is gone back into the store.
    DetachmentCreates,
    /// A renewal sets the time of its hold, also if the hold had more.
    RenewalShortens,
    /// A detached hold keeps its id, so requests of its former holder still find it.
    DetachedKeepsItsId,
    /// A hold that is taken over keeps the id of its ticket, so another client can take it over too.
    TicketForTwo,
    /// A hold that was taken over and is handed back to its ticket is released.
    HandingBackReleases,
    /// A claim that only waits is taken over by a ticket with its id.
    WaiterIsTakenOver,
    /// A release by a ticket whose claim is gone removes the next holder.
    TicketRemovesTheNext,
    /// A release by ticket wakes nobody.
    TicketWakesNobody,
    /// A hold that was taken back keeps the time for which it was detached: no renewal shortens it, so it outlives its
    /// holder's crash.
    ResumedKeepsItsTime,
    /// Several locks in one step: if one is busy, those before it stay taken.
    TogetherKeepsSome,
    /// Several locks in one step: they are taken if nobody holds them, whoever waits.
    TogetherPassesWaiters,
    /// Several locks in one step: that is two steps. The first looks whether they are free, the second takes them.
    TogetherInTwoSteps,
}

impl Bug {
    /// All that are bugs.
    pub const ALL: [Self; 48] = [
        Self::ReleaseWithoutOwnerCheck,
        Self::ReleaseOfALostClaimRemovesTheNext,
        Self::RenewalCreates,
        Self::RenewalExtendsAnybody,
        Self::ExpiryIgnored,
        Self::ExpiryEarly,
        Self::TokenStandsStill,
        Self::TokenGrowsOnAsking,
        Self::TokenReusedAfterExpiry,
        Self::TokenRestarts,
        Self::ReaderBesideWriter,
        Self::WriterBesideReaders,
        Self::ReaderPassesWriter,
        Self::LastComeFirst,
        Self::DeadWaiterStays,
        Self::BurialShiftsOrder,
        Self::WaiterStaysOnCancel,
        Self::HoldStaysOnCancel,
        Self::SecondWaiterNotWoken,
        Self::LostOnRelease,
        Self::ReleaseSeesNoLoss,
        Self::NeverLost,
        Self::ValidFromReceipt,
        Self::AskingTwiceEntersTwice,
        Self::NamesIgnoreCase,
        Self::NoRowLock,
        Self::NoTokenFloor,
        Self::IdentityPerClient,
        Self::DeafDowngrade,
        Self::BellsStay,
        Self::PermitOffByOne,
        Self::PermitSeesOwnLimitOnly,
        Self::DeadPermitLost,
        Self::PermitWakesAll,
        Self::DetachedDiesWithItsClient,
        Self::DetachedForEver,
        Self::DetachmentCreates,
        Self::RenewalShortens,
        Self::DetachedKeepsItsId,
        Self::TicketForTwo,
        Self::HandingBackReleases,
        Self::WaiterIsTakenOver,
        Self::TicketRemovesTheNext,
        Self::TicketWakesNobody,
        Self::ResumedKeepsItsTime,
        Self::TogetherKeepsSome,
        Self::TogetherPassesWaiters,
        Self::TogetherInTwoSteps,
    ];
}
