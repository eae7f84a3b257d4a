//! Tickets, which are references to detached holds in the form of a text.

use std::{fmt, num::NonZeroU32, str::FromStr, sync::Arc};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::sync::oneshot;

use super::{Guard, Locks};
use crate::engine::Keeper;
use crate::{
    contract::Request,
    model::{ClaimId, Error, Kind, LockName, Result, Token},
};

/// A reference to a detached hold. Any client of the store can [take the hold over](Locks::resume)
/// or [release](Locks::release) it with the ticket, also in another process and on another host.
///
/// As text, a ticket is one word that can be printed, stored and parsed again. It contains no
/// secret of the store, but every client that has the text and can reach the store can release the
/// lock.
///
/// A ticket works once. The store hands the hold over to the first client that presents it, under a
/// new id. Every other use of the ticket fails with [`Error::Lost`], and does not disturb the new
/// holder. Only [`Guard::detach`](crate::Guard::detach) makes tickets. A handwritten ticket with
/// the id of a claim that is not detached may end that claim, as
/// [`force_release`](Locks::force_release) does.
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

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the kind of the hold.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the id of the detached hold.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Returns the fencing token of the hold. It stays the same when the hold is taken over. `None`
    /// if the store has no tokens.
    pub fn token(&self) -> Option<Token> {
        self.token
    }
}

/// First part of a ticket. A later format will begin with another word.
const FORMAT: &str = "dlock1";

/// Characters of a name that are escaped in a ticket, so that the ticket is one word in a shell and
/// in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

impl fmt::Display for Ticket {
    /// Writes one word with the format, the kind, the token, the id and the name:
    /// `dlock1:mutex:1795263356424233:6d5e…:invoice/42`. The limit follows the kind of a permit, as
    /// in `permit/4`. A locator, if there is one, follows the id after a `+`. A missing token is 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, limit, id, token, locator } = self;
        write!(f, "{FORMAT}:{kind}")?;
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
    /// [`Error::InvalidOptions`] if the text is not a ticket, and [`Error::InvalidName`] if its
    /// name is not a legal lock name.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |fault: &str| {
            let reason =
                format!("not a ticket: {fault}; a ticket is the whole word that `detach` gave, `{FORMAT}:…`");
            Error::InvalidOptions { reason }
        };
        let parts: Vec<_> = text.trim().split(':').collect();
        let [format, kind, token, id, name] = parts[..] else {
            return Err(invalid("it does not have five parts"));
        };
        if format != FORMAT {
            return Err(invalid("it is of another version of dlock, or of another program"));
        }
        let (kind, limit) = kind.split_once('/').map_or((kind, None), |(kind, limit)| (kind, Some(limit)));
        let kind = Kind::from_name(kind).ok_or_else(|| invalid("its kind of lock is unknown"))?;
        if limit.is_some() && kind != Kind::Permit {
            return Err(invalid("only a permit has a limit"));
        }
        let limit =
            limit.unwrap_or("1").parse().map_err(|_| invalid("its limit is not a number above zero"))?;
        let token: u64 = token.parse().map_err(|_| invalid("its token is not a number"))?;
        let (id, locator) = id.split_once('+').map_or((id, None), |(id, locator)| (id, Some(locator.into())));
        let id = id.parse().map_err(|_| invalid("its id is damaged"))?;
        let name = percent_decode_str(name).decode_utf8().map_err(|_| invalid("its name is not UTF-8"))?;
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
    /// Takes over the hold of a ticket. The new guard has a new id and the token of the first
    /// grant. Its ttl and renewals are those of the client's [defaults](Self::with_defaults), or
    /// else of [`LockOptions`](crate::LockOptions). The ttl replaces the rest of the ticket's time,
    /// even if that was longer.
    ///
    /// # Errors
    /// - [`Error::Lost`] if no hold is detached under the ticket. Its time has ended, it was
    ///   released or broken, or another client has taken it over.
    /// - [`Error::Unsupported`], before any I/O, if the store has no tickets.
    /// - [`Error::InvalidOptions`], before any I/O, if the store cannot use the client's defaults.
    /// - [`Error::Closed`] if the client was closed.
    /// - The store's errors. The ticket can then be used again, for one ttl at least.
    ///
    /// # Cancel safety
    /// Safe. If the future is dropped, a task returns the hold to the ticket for the rest of the
    /// ticket's time. If the store's reply was lost, the hold returns to the ticket for one ttl.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        let (locks, id, ticket) = (self.without_thread(), ticket.id, ticket.clone());
        let resumed = async move {
            let (reply, outcome) = oneshot::channel();
            let new_id = ClaimId::random_for(&locks.defaults().who(locks.who())?);
            locks.keeper_of(&ticket, new_id)?.start_resume(ticket.id, ticket.token, reply);
            let hold_ref = outcome.await.unwrap_or_else(|_| Err(locks.client().keeper_ended()))?;
            hold_ref.ok_or_else(|| locks.client().keeper_ended())
        };
        let hold_ref = self.on_thread(resumed).await?;
        // Only now does the caller have the hold. If it gives up earlier, the hold goes back to the
        // ticket.
        hold_ref.hold.accept();
        self.client().tickets.free(id);
        Ok(Guard::of(hold_ref, self))
    }

    /// Releases the hold of a ticket, and waits until the store has confirmed it. The next waiter
    /// gets the lock.
    ///
    /// # Errors
    /// As [`resume`](Self::resume). After an error of the store, the lock is free at the end of the
    /// ticket's time at the latest.
    ///
    /// # Cancel safety
    /// Safe. If the future is dropped, a task completes the release.
    pub async fn release(&self, ticket: &Ticket) -> Result<()> {
        let (locks, ticket) = (self.without_thread(), ticket.clone());
        let released = async move {
            let (reply, result) = oneshot::channel();
            locks.keeper_of(&ticket, ticket.id)?.start_release_detached(reply);
            result.await.unwrap_or_else(|_| Err(locks.client().keeper_ended()))
        };
        match self.thread() {
            None => released.await,
            Some(thread) => thread.finish(released).await,
        }
    }

    /// Creates a keeper with this id for the hold of a ticket, after all checks before I/O.
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
mod fuzz;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{LostReason, Owner, RedLock, memory::MemoryBackend};

    const TEN_MINUTES: Duration = Duration::from_secs(600);

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
    fn a_text_that_is_no_ticket_is_refused_with_its_fault() {
        let id = ClaimId::random();
        for (text, words) in [
            (String::new(), "five parts"),
            (format!("dlock9:mutex:1:{id}:x"), "another version"),
            (format!("dlock1:spin:1:{id}:x"), "kind"),
            (format!("dlock1:permit/0:1:{id}:x"), "limit"),
            (format!("dlock1:mutex/4:1:{id}:x"), "only a permit has a limit"),
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
        let ticket = guard.detach(TEN_MINUTES).await.expect("memory can");
        assert_eq!((ticket.name().as_str(), ticket.kind(), ticket.token()), ("x", Kind::Mutex, token));
        tokio::time::advance(TEN_MINUTES - Duration::from_secs(1)).await;
        assert!(
            locks.mutex("x").try_lock().await.expect("no error").is_none(),
            "the lock is free although it was detached"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(
            locks.mutex("x").try_lock().await.expect("no error").is_some(),
            "the lock is still taken after the ticket's time"
        );
        let error = locks.resume(&ticket).await.expect_err("its time is over");
        assert!(matches!(error, Error::Lost { reason: LostReason::Deleted, .. }), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_tokens_gives_none_to_an_altered_ticket() {
        let members = (0..3).map(|_| MemoryBackend::new().into_store());
        let locks = Locks::new(RedLock::new(members).expect("three members").into_store());
        let guard = locks.mutex("x").lock().await.expect("free");
        assert_eq!(guard.token(), None, "a majority has no token");
        let mut ticket = guard.detach(TEN_MINUTES).await.expect("memory can");
        ticket.token = Token::new(7);
        let guard = locks.resume(&ticket).await.expect("still held");
        assert_eq!(guard.token(), None, "the token of the text was believed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_taken_back_is_renewed_and_has_its_token() {
        let locks = Locks::memory();
        let guard = locks.rwlock("x").write().lock().await.expect("free");
        let token = guard.token();
        let ticket = guard.detach(TEN_MINUTES).await.expect("memory can");
        let guard = locks.resume(&ticket).await.expect("still held");
        assert_eq!(guard.token(), token);
        assert_ne!(guard.id(), Some(ticket.id()), "a second taker would find the hold");
        tokio::time::sleep(2 * TEN_MINUTES).await;
        assert!(!guard.is_lost(), "the hold was not renewed");
        guard.release().await.expect("held until now");
        assert!(locks.mutex("x").try_lock().await.expect("no error").is_some());
        assert!(locks.release(&ticket).await.is_err(), "a ticket that was used up released something");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_releases_the_lock_without_taking_it_back() {
        let locks = Locks::memory();
        let ticket =
            locks.mutex("x").lock().await.expect("free").detach(TEN_MINUTES).await.expect("memory can");
        locks.release(&ticket).await.expect("held until now");
        assert!(locks.inspect("x").await.expect("no error").is_none(), "something is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_has_one_taker_and_further_uses_do_not_disturb_it() {
        let locks = Locks::memory();
        let ticket =
            locks.mutex("x").lock().await.expect("free").detach(TEN_MINUTES).await.expect("memory can");
        let (first, second) = tokio::join!(locks.resume(&ticket), locks.resume(&ticket));
        let (taken, refused): (Vec<_>, Vec<_>) =
            [first, second].into_iter().partition(|result| result.is_ok());
        assert_eq!((taken.len(), refused.len()), (1, 1), "both calls took the hold over: {taken:?}");
        let released = locks.release(&ticket).await;
        assert!(matches!(released, Err(Error::Lost { .. })), "released under its holder: {released:?}");
        for error in [released.unwrap_err(), refused.into_iter().next().unwrap().unwrap_err()] {
            let text = error.to_string();
            let causes = ["expired", "was released", "taken over"];
            assert!(causes.iter().all(|cause| text.contains(cause)), "{text}");
        }
        tokio::time::sleep(TEN_MINUTES).await;
        let guard = taken.into_iter().next().expect("counted above").expect("partitioned above");
        assert!(!guard.is_lost());
        guard.release().await.expect("held until now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_that_is_given_up_can_be_used_again_for_the_rest_of_its_time() {
        let locks = Locks::memory();
        let ticket =
            locks.mutex("x").lock().await.expect("free").detach(TEN_MINUTES).await.expect("memory can");
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
        assert!(left > TEN_MINUTES - Duration::from_secs(10), "shortened to {left:?}");
        locks.resume(&ticket).await.expect("still detached").release().await.expect("held until now");
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
            let forged: Ticket = format!("{FORMAT}:mutex:7:{}:x", contender.id).parse().expect("well formed");
            let result = locks.resume(&forged).await;
            assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
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
        let error = inner.detach(TEN_MINUTES).await.expect_err("the outer guard would lose its lock");
        assert!(matches!(error.error(), Error::Unsupported { .. }), "{error}");
        let inner = error.into_guard();
        assert_eq!((inner.hold_count(), outer.is_lost()), (2, false));
        drop(inner);
        let ticket = outer.detach(TEN_MINUTES).await.expect("the only guard");
        assert!(locks.mutex("x").owned_by(&me).try_lock().await.expect("no error").is_none());
        locks.release(&ticket).await.expect("held until now");
    }
}
