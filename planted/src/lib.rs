//! Stores with one planted bug each, which the suite has to detect.
//!
//! [`BuggyStore`] is a copy of the memory store. A bug of the engine is planted as the most similar
//! bug of a driver. [`BuggyServer`] is a network store.

mod net;
mod queues;
mod store;

pub use net::{BuggyServer, LINE_DRIVER, LineBug};
pub use store::BuggyStore;

/// The bug of a [`BuggyStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bug {
    /// No bug. The suite must pass.
    None,
    /// A release frees the lock without a check of the holder's id.
    ReleaseWithoutOwnerCheck,
    /// The release of a deleted claim removes the next holder.
    ReleaseOfALostClaimRemovesTheNext,
    /// A renewal creates a deleted claim again.
    RenewalCreates,
    /// A renewal of a deleted claim extends the claim of the present holder, and reports success.
    RenewalExtendsAnyHolder,
    /// Claims never expire.
    ExpiryIgnored,
    /// Claims expire after half of their ttl.
    ExpiryEarly,
    /// Every grant has the same token.
    TokenNeverGrows,
    /// A repeated attempt of a claim returns a new token, also in a downgrade.
    TokenGrowsOnRepeatedAttempt,
    /// The token of an expired holder is given to another claim.
    TokenReusedAfterExpiry,
    /// Tokens start again at 1 when the queue is empty.
    TokenRestarts,
    /// A reader is granted beside a writer.
    ReaderBesideWriter,
    /// A writer is granted beside readers.
    WriterBesideReaders,
    /// A reader joins other readers although a writer waits.
    ReaderPassesWriter,
    /// The waiter that joined last is next.
    LastInFirstOut,
    /// Only granted claims expire. Waiting ones stay.
    SilentWaiterStays,
    /// When a claim expires, the last claim of the queue takes its position.
    ExpiryReordersQueue,
    /// A release removes only a claim whose turn it is.
    WaiterStaysOnCancel,
    /// A release does not remove a claim whose turn it is before the claim has received its grant.
    HoldStaysOnCancel,
    /// Of several claims whose turn comes at once, only the first is woken.
    SecondWaiterNotWoken,
    /// The release of a reader makes the other readers' renewals report a loss.
    LostOnRelease,
    /// The release of a deleted claim reports that the claim was there.
    ReleaseHidesLoss,
    /// A renewal always succeeds, even if the claim was deleted.
    NeverLost,
    /// The first reply to a claim is slow, and the driver counts the validity from that reply, not
    /// from before the request.
    ValidFromReceipt,
    /// A repeated attempt of a claim adds a second entry to the queue.
    RepeatedAttemptEntersTwice,
    /// Names that differ only in case are the same lock.
    NamesIgnoreCase,
    /// The first claim of a new name checks whether the lock is free, and enters the queue in a
    /// second step, because there is no row to lock.
    NoRowLock,
    /// Tokens start at 1 instead of the clock.
    NoTokenFloor,
    /// Every client has a different identity of the store.
    IdentityPerClient,
    /// A downgraded claim receives no hints. There is one bell for each id, and it belongs to the
    /// claim object that was replaced.
    DowngradeLosesHints,
    /// The store keeps a bell for each name that was ever used.
    BellsAreKept,
    /// One permit too many is granted.
    PermitOffByOne,
    /// A permit is granted if its own limit allows it, without regard to the limits of the other
    /// permits.
    PermitSeesOwnLimitOnly,
    /// The permit of a dead holder is lost, because granted permits never expire.
    DeadPermitLost,
    /// The release of a permit wakes all waiters.
    PermitWakesAll,
    /// A detached hold ends when its client is killed or closed.
    DetachedDiesWithItsClient,
    /// A detached hold never expires, although nothing renews it.
    DetachedNeverExpires,
    /// A detachment creates a deleted claim again.
    DetachmentCreates,
    /// A renewal sets the remaining time of its hold, even if that shortens it.
    RenewalShortens,
    /// A detached hold keeps its id, so requests of its former holder still find it.
    DetachedKeepsItsId,
    /// A resumed hold keeps the id of its ticket, so another client can resume it again.
    TicketWorksTwice,
    /// A claim that found no hold to hand back releases the ticket of another claim.
    LostKeepsTheTicket,
    /// The hand-back of a resumed hold to its ticket releases it.
    HandingBackReleases,
    /// A ticket with the id of a waiting claim takes that claim over.
    WaiterIsTakenOver,
    /// The release by ticket of a deleted claim removes the next holder.
    TicketReleaseRemovesTheNext,
    /// A release by ticket wakes no waiter.
    TicketReleaseWakesNoWaiter,
    /// A resumed hold keeps the time for which it was detached. No renewal shortens it, so it
    /// outlives a crash of its holder.
    ResumedKeepsItsTime,
    /// A joint attempt for several locks of which one is busy keeps those before the busy one.
    JointAttemptKeepsSome,
    /// A joint attempt takes locks that have no holder, even if they have waiters.
    JointAttemptPassesWaiters,
    /// A joint attempt checks in a first step whether the locks are free, and takes them in a
    /// second.
    JointAttemptInTwoSteps,
    /// A renewal waits until the attempts of all waiters of its client are completed.
    RenewalBehindAttempts,
    /// Grants and renewals report a validity that is half a ttl too long, as if the engine added a
    /// margin of a quarter of the ttl instead of subtracting it.
    MarginAdded,
    /// The release of a lock creates the mark that the last unsuccessful look-up was for, so work
    /// that failed counts as done.
    MarkAfterFailedRun,
    /// A grant promises twice the time for which the store keeps the claim. A leader whose term has
    /// ended therefore believes that it leads: a stale flag.
    StaleFlag,
    /// The renewal of a hold for which another claim waits releases it, and reports success. The
    /// next candidate is elected while the work of the leader still runs.
    RenewalGivesWay,
    /// An inspection of a lock shows claims that have expired, so that observers report a dead
    /// leader.
    InspectionShowsTheDead,
    /// A release wakes all waiters of the lock.
    ReleaseWakesAll,
    /// The tokens that an inspection shows decrease from grant to grant.
    InspectedTokenDecreases,
}

impl Bug {
    /// All bugs, without [`None`](Self::None).
    pub const ALL: [Self; 57] = [
        Self::ReleaseWithoutOwnerCheck,
        Self::ReleaseOfALostClaimRemovesTheNext,
        Self::RenewalCreates,
        Self::RenewalExtendsAnyHolder,
        Self::ExpiryIgnored,
        Self::ExpiryEarly,
        Self::TokenNeverGrows,
        Self::TokenGrowsOnRepeatedAttempt,
        Self::TokenReusedAfterExpiry,
        Self::TokenRestarts,
        Self::ReaderBesideWriter,
        Self::WriterBesideReaders,
        Self::ReaderPassesWriter,
        Self::LastInFirstOut,
        Self::SilentWaiterStays,
        Self::ExpiryReordersQueue,
        Self::WaiterStaysOnCancel,
        Self::HoldStaysOnCancel,
        Self::SecondWaiterNotWoken,
        Self::LostOnRelease,
        Self::ReleaseHidesLoss,
        Self::NeverLost,
        Self::ValidFromReceipt,
        Self::RepeatedAttemptEntersTwice,
        Self::NamesIgnoreCase,
        Self::NoRowLock,
        Self::NoTokenFloor,
        Self::IdentityPerClient,
        Self::DowngradeLosesHints,
        Self::BellsAreKept,
        Self::PermitOffByOne,
        Self::PermitSeesOwnLimitOnly,
        Self::DeadPermitLost,
        Self::PermitWakesAll,
        Self::DetachedDiesWithItsClient,
        Self::DetachedNeverExpires,
        Self::DetachmentCreates,
        Self::RenewalShortens,
        Self::DetachedKeepsItsId,
        Self::TicketWorksTwice,
        Self::LostKeepsTheTicket,
        Self::HandingBackReleases,
        Self::WaiterIsTakenOver,
        Self::TicketReleaseRemovesTheNext,
        Self::TicketReleaseWakesNoWaiter,
        Self::ResumedKeepsItsTime,
        Self::JointAttemptKeepsSome,
        Self::JointAttemptPassesWaiters,
        Self::JointAttemptInTwoSteps,
        Self::RenewalBehindAttempts,
        Self::MarginAdded,
        Self::MarkAfterFailedRun,
        Self::StaleFlag,
        Self::RenewalGivesWay,
        Self::InspectionShowsTheDead,
        Self::ReleaseWakesAll,
        Self::InspectedTokenDecreases,
    ];
}
