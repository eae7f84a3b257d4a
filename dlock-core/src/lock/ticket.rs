//! Tickets: a hold that was detached, as text. Over the usual length with its tests.

use std::{fmt, num::NonZeroU32, str::FromStr, sync::Arc};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::sync::oneshot;

use super::{Guard, Locks};
use crate::engine::Keeper;
use crate::{
    contract::Request,
    model::{ClaimId, Error, Kind, LockName, Result, Token},
};

/// A hold without a guard: who has the ticket can [take the lock back](Locks::resume) or [release](Locks::release) it, also
/// in another process and on another host.
///
/// It is a text of one word, to be printed, stored and parsed again. It has no secret of the store; but whoever reads it can
/// release the lock if they can reach the store.
///
/// A ticket is for one taker: the store hands the lock over to the first one, under a new id. Every other use of the ticket
/// gets [`Error::Lost`], and does not disturb the holder.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{Locks, Ticket};
/// use std::time::Duration;
/// let locks = Locks::memory();
/// let guard = locks.mutex("deploy").lock().await?;
/// let text = guard.detach(Duration::from_secs(600)).await?.to_string();
///
/// let ticket: Ticket = text.parse()?; // in another process, within ten minutes
/// let guard = locks.resume(&ticket).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    name: LockName,
    kind: Kind,
    limit: NonZeroU32,
    id: ClaimId,
    token: Option<Token>,
    locator: Option<Arc<str>>,
}

impl Ticket {
    pub(super) fn new(request: Request, token: Option<Token>) -> Self {
        let Request { name, kind, limit, id, locator, .. } = request;
        Self { name, kind, limit, id, token, locator }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// How the lock is held.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Which claim holds it.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// The fencing token of the hold, which taking it back does not change.
    pub fn token(&self) -> Option<Token> {
        self.token
    }
}

/// With which word a ticket begins. A later form will begin with another.
const FORM: &str = "dlock1";

/// What of a name stands in a ticket as it is. The rest is escaped, so that the ticket is one word in a shell and in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

impl fmt::Display for Ticket {
    /// One word: `dlock1:mutex:1795263356424233:6d5e…:invoice/42`. A permit has its limit behind the kind, and the id may have
    /// a locator behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, limit, id, token, locator } = self;
        write!(f, "{FORM}:{kind}")?;
        if *kind == Kind::Permit {
            write!(f, "/{limit}")?;
        }
        write!(f, ":{}:{id}", token.map_or(0, Token::get))?;
        if let Some(locator) = locator {
            write!(f, "+{locator}")?;
        }
        write!(f, ":{}", utf8_percent_encode(name.as_str(), ESCAPED))
    }
}

impl FromStr for Ticket {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidOptions`] for a text that no ticket has.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            let reason =
                format!("not a ticket: {what}; a ticket is the whole word that `detach` gave, `{FORM}:…`");
            Error::InvalidOptions { reason }
        };
        let parts: Vec<_> = text.trim().split(':').collect();
        let [form, kind, token, id, name] = parts[..] else { return Err(wrong("it has not five parts")) };
        if form != FORM {
            return Err(wrong("it is of another version of dlock, or of something else"));
        }
        let (kind, limit) = kind.split_once('/').unwrap_or((kind, "1"));
        let kind = Kind::from_name(kind).ok_or_else(|| wrong("its kind of lock is not known"))?;
        let limit = limit.parse().map_err(|_| wrong("its limit is no number"))?;
        let token: u64 = token.parse().map_err(|_| wrong("its token is no number"))?;
        let (id, locator) = id.split_once('+').map_or((id, None), |(id, locator)| (id, Some(locator.into())));
        let id = id.parse().map_err(|_| wrong("its id is damaged"))?;
        let name = percent_decode_str(name).decode_utf8().map_err(|_| wrong("its name is not UTF-8"))?;
        let name = LockName::new(name)?;
        Ok(Self { name, kind, limit, id, token: Token::new(token), locator })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Ticket {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<str>::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Locks {
    /// Takes over the lock that a ticket stands for. The guard is renewed, with the client's
    /// [defaults](Self::with_defaults), and has a new id and the token of the first grant.
    ///
    /// # Errors
    /// [`Error::Lost`] if no lock is detached under the ticket: its time is over, it was released or broken, or another
    /// process has taken it over. [`Error::Unsupported`] before any I/O where the store has no tickets, and the store's own:
    /// the ticket can then be used again, for a ttl at least.
    ///
    /// # Cancel safety
    /// Safe: after the future is dropped, a task hands the lock back to the ticket, for what was left of its time. Where the
    /// store's reply was lost, that is one ttl.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        let (locks, id, ticket) = (self.as_on_thread(), ticket.id, ticket.clone());
        let resumed = async move {
            let (reply, answer) = oneshot::channel();
            let heir = ClaimId::random_for(&locks.defaults().who(locks.who())?);
            locks.keeper_of(&ticket, heir)?.start_resume(ticket.id, ticket.token, reply);
            let stake = answer.await.unwrap_or_else(|_| Err(locks.client().keeper_ended()))?;
            stake.ok_or_else(|| locks.client().keeper_ended())
        };
        let stake = self.on_thread(resumed).await?;
        // Not before the caller has the hold: until then, giving up leaves it to the ticket.
        stake.hold.accept();
        self.client().tickets.free(id);
        Ok(Guard::of(stake, self))
    }

    /// Releases the lock that a ticket stands for. The next in the queue gets it.
    ///
    /// # Errors
    /// As [`resume`](Self::resume). After an error of the store, the lock is free at the latest when the ticket's time is over.
    ///
    /// # Cancel safety
    /// Safe: dropping the future leaves the release to a task.
    pub async fn release(&self, ticket: &Ticket) -> Result<()> {
        let (locks, ticket) = (self.as_on_thread(), ticket.clone());
        let released = async move {
            let (reply, answer) = oneshot::channel();
            locks.keeper_of(&ticket, ticket.id)?.start_release_detached(reply);
            answer.await.unwrap_or_else(|_| Err(locks.client().keeper_ended()))
        };
        match self.thread() {
            None => released.await,
            Some(thread) => thread.finish(released).await,
        }
    }

    fn keeper_of(&self, ticket: &Ticket, id: ClaimId) -> Result<Box<Keeper>> {
        let (client, defaults, info) = (self.client(), self.defaults(), self.info());
        defaults.validate(info)?;
        info.check_kind(ticket.kind)?;
        info.check_detach(*info.leases.start())?;
        client.check(&ticket.name)?;
        let Ticket { name, kind, limit, locator, .. } = ticket.clone();
        let (terms, who) = (defaults.terms(info), defaults.who(self.who())?);
        let request = Request::by(who, name, kind, terms.ttl).limit(limit).id(id).locator(locator);
        Ok(Keeper::new(client, request, terms, None))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{LostReason, Owner};

    const TEN: Duration = Duration::from_secs(600);

    proptest! {
        #[test]
        fn a_ticket_is_one_word_and_reads_back(
            name in "[^\\p{Cc}]{1,40}",
            kind in prop::sample::select(Kind::ALL),
            limit in 1u32..,
            token: u64,
            locator in prop::option::of("[0-9a-z.]{1,9}"),
        ) {
            let name = LockName::new(name).expect("legal");
            let limit = if kind == Kind::Permit { NonZeroU32::new(limit).expect("not zero") } else { NonZeroU32::MIN };
            let locator = locator.map(Into::into);
            let ticket = Ticket { name, kind, limit, id: ClaimId::random(), token: Token::new(token), locator };
            let text = ticket.to_string();
            prop_assert!(text.chars().all(|c| c.is_ascii_graphic() && !"'\"$`\\;&|<>*?()[]{}".contains(c)), "{text}");
            prop_assert_eq!(text.parse::<Ticket>().expect("its own text"), ticket);
        }
    }

    #[test]
    fn a_text_that_is_no_ticket_is_refused_with_what_is_wrong() {
        let id = ClaimId::random();
        for (text, words) in [
            (String::new(), "five parts"),
            (format!("dlock9:mutex:1:{id}:x"), "another version"),
            (format!("dlock1:spin:1:{id}:x"), "kind"),
            (format!("dlock1:permit/0:1:{id}:x"), "limit"),
            (format!("dlock1:mutex:one:{id}:x"), "token"),
            ("dlock1:mutex:1:4711:x".to_owned(), "id"),
            (format!("dlock1:mutex:1:{id}:"), "empty"),
        ] {
            let error = text.parse::<Ticket>().expect_err("not a ticket").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_keeps_the_lock_for_its_time_and_no_longer() {
        let locks = Locks::memory();
        let guard = locks.mutex("x").lock().await.expect("free");
        let token = guard.token();
        let ticket = guard.detach(TEN).await.expect("memory can");
        assert_eq!((ticket.name().as_str(), ticket.kind(), ticket.token()), ("x", Kind::Mutex, token));
        tokio::time::advance(TEN - Duration::from_secs(1)).await;
        assert!(locks.mutex("x").try_lock().await.expect("no error").is_none(), "nobody holds it any more");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(locks.mutex("x").try_lock().await.expect("no error").is_some(), "somebody holds it still");
        let error = locks.resume(&ticket).await.expect_err("its time is over");
        assert!(matches!(error, Error::Lost { reason: LostReason::Taken, .. }), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_taken_back_is_renewed_and_has_its_token() {
        let locks = Locks::memory();
        let guard = locks.rwlock("x").write().lock().await.expect("free");
        let token = guard.token();
        let ticket = guard.detach(TEN).await.expect("memory can");
        let guard = locks.resume(&ticket).await.expect("still held");
        assert_eq!(guard.token(), token);
        assert_ne!(guard.id(), Some(ticket.id()), "a second taker would find the hold");
        tokio::time::sleep(2 * TEN).await;
        assert!(!guard.is_lost(), "nobody renewed it");
        guard.release().await.expect("held until now");
        assert!(locks.mutex("x").try_lock().await.expect("no error").is_some());
        assert!(locks.release(&ticket).await.is_err(), "a ticket that was used up released something");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_releases_the_lock_without_taking_it_back() {
        let locks = Locks::memory();
        let ticket = locks.mutex("x").lock().await.expect("free").detach(TEN).await.expect("memory can");
        locks.release(&ticket).await.expect("held until now");
        assert!(locks.inspect("x").await.expect("no error").is_none(), "something is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_has_one_taker_and_nobody_disturbs_it() {
        let locks = Locks::memory();
        let ticket = locks.mutex("x").lock().await.expect("free").detach(TEN).await.expect("memory can");
        let (first, second) = tokio::join!(locks.resume(&ticket), locks.resume(&ticket));
        let (taken, refused): (Vec<_>, Vec<_>) = [first, second].into_iter().partition(|told| told.is_ok());
        assert_eq!((taken.len(), refused.len()), (1, 1), "both hold it: {taken:?}");
        let released = locks.release(&ticket).await;
        assert!(matches!(released, Err(Error::Lost { .. })), "released under its holder: {released:?}");
        for told in [released.unwrap_err(), refused.into_iter().next().unwrap().unwrap_err()] {
            let text = told.to_string();
            let causes = ["expired", "was released", "taken over"];
            assert!(causes.iter().all(|cause| text.contains(cause)), "{text}");
        }
        tokio::time::sleep(TEN).await;
        let guard = taken.into_iter().next().expect("counted above").expect("partitioned above");
        assert!(!guard.is_lost());
        guard.release().await.expect("held until now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_that_is_given_up_can_be_used_again_for_the_rest_of_its_time() {
        let locks = Locks::memory();
        let ticket = locks.mutex("x").lock().await.expect("free").detach(TEN).await.expect("memory can");
        for steps in 0..6 {
            let mut resuming = Box::pin(locks.resume(&ticket));
            for _ in 0..steps {
                assert!(futures_util::poll!(&mut resuming).is_pending() || steps > 1);
                tokio::task::yield_now().await;
                if steps > 1 {
                    break;
                }
            }
            drop(resuming);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let state = locks.inspect("x").await.expect("memory shows locks").expect("given back, not released");
        let left = state.holders[0].ttl_left.expect("memory knows it");
        assert!(left > TEN - Duration::from_secs(10), "shortened to {left:?}");
        locks.resume(&ticket).await.expect("nobody has it").release().await.expect("held until now");
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_that_was_not_detached_is_no_ticket() {
        let locks = Locks::memory();
        let held = locks.mutex("x").lock().await.expect("free");
        let waiter = locks.fair("x");
        let mut waiting = Box::pin(async move { waiter.lock().await });
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let state = locks.inspect("x").await.expect("memory shows locks").expect("held");
        for contender in state.holders.iter().chain(&state.queue) {
            let forged: Ticket = format!("{FORM}:mutex:7:{}:x", contender.id).parse().expect("well formed");
            let told = locks.resume(&forged).await;
            assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
        }
        assert!(!held.is_lost());
        held.release().await.expect("held until now");
        drop(waiting.await.expect("its turn"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_that_shares_its_hold_is_given_back() {
        let (locks, me) = (Locks::memory(), Owner::new());
        let outer = locks.mutex("x").owned_by(&me).lock().await.expect("free");
        let inner = locks.mutex("x").owned_by(&me).lock().await.expect("the same owner");
        let error = inner.detach(TEN).await.expect_err("the outer guard would lose its lock");
        assert!(matches!(error.error(), Error::Unsupported { .. }), "{error}");
        let inner = error.into_guard();
        assert_eq!((inner.hold_count(), outer.is_lost()), (2, false));
        drop(inner);
        let ticket = outer.detach(TEN).await.expect("the only guard");
        assert!(locks.mutex("x").owned_by(&me).try_lock().await.expect("no error").is_none());
        locks.release(&ticket).await.expect("held until now");
    }
}
