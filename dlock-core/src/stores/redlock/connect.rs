//! Connecting to the members of a RedLock while some of them are unreachable.

use std::time::Duration;

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use crate::{contract::Store, kit::ConnectFuture, model::Result};

/// Time that connecting waits for the other members once a majority has replied: a multiple of the
/// time that the majority took, and at least this minimum.
const GRACE_FACTOR: u32 = 4;
const MIN_GRACE: Duration = Duration::from_millis(250);

/// Connects to the members of a [`RedLock`](crate::RedLock), and returns them in the same order.
///
/// Each member has a future that connects to it, and may have a store that connects when it is first
/// used. The latter takes the place of a member that is unreachable, or that replies much later than
/// the majority. A majority of the members must be reachable, and so must every member without such
/// a store.
///
/// # Errors
/// Every permanent error. [`Error::Unavailable`](crate::Error::Unavailable) of the first unreachable
/// member if there is no majority, or of one without a store that connects later.
///
/// # Cancel safety
/// Safe. Dropping the future ends the attempts.
pub async fn connect_majority(members: Vec<(ConnectFuture, Option<Store>)>) -> Result<Vec<Store>> {
    let start = Instant::now();
    let mut tolerated = members.len().saturating_sub(1) / 2;
    let majority = members.len() - tolerated;
    let (connecting, lazy): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let connecting = connecting.into_iter().enumerate();
    let mut outstanding: FuturesUnordered<_> =
        connecting.map(|(index, connecting)| async move { (index, connecting.await) }).collect();
    let mut connected = vec![None; lazy.len()];
    let (mut end_of_grace, mut first_error) = (None, None);
    let mut is_grace_over = false;
    loop {
        let is_replaceable =
            |(member, lazy): (&Option<Store>, &Option<Store>)| member.is_some() || lazy.is_some();
        if is_grace_over && connected.iter().zip(&lazy).all(is_replaceable) {
            break;
        }
        let reply = tokio::select! {
            biased;
            reply = outstanding.next() => reply,
            () = sleep_until(end_of_grace.unwrap_or(start)), if end_of_grace.is_some() && !is_grace_over => {
                is_grace_over = true;
                continue;
            }
        };
        match reply {
            None => break,
            Some((index, Ok(member))) => connected[index] = Some(member),
            Some((index, Err(error))) if !error.is_transient() || lazy[index].is_none() => return Err(error),
            Some((_, Err(error))) if tolerated == 0 => return Err(first_error.unwrap_or(error)),
            Some((_, Err(error))) => {
                tolerated -= 1;
                first_error.get_or_insert(error);
            }
        }
        if end_of_grace.is_none() && connected.iter().flatten().count() >= majority {
            let grace = (start.elapsed() * GRACE_FACTOR).max(MIN_GRACE);
            end_of_grace = Some(Instant::now() + grace);
        }
    }
    Ok(connected.into_iter().zip(lazy).filter_map(|(member, lazy)| member.or(lazy)).collect())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;
    use crate::{kit::StoreErrors, model::Error, stores::memory::MemoryBackend};

    const STORE: StoreErrors = StoreErrors::new("table");

    /// A majority of two members that connect after these times, and a third member.
    fn with_two(
        times: [u64; 2],
        third: (ConnectFuture, Option<Store>),
    ) -> Vec<(ConnectFuture, Option<Store>)> {
        let member = |time: u64| {
            let connecting: ConnectFuture = Box::pin(async move {
                sleep(Duration::from_millis(time)).await;
                Ok(MemoryBackend::new().into_store())
            });
            (connecting, Some(MemoryBackend::new().into_store()))
        };
        times.map(member).into_iter().chain([third]).collect()
    }

    fn failing(error: Error) -> ConnectFuture {
        Box::pin(ready(Err(error)))
    }

    fn down() -> ConnectFuture {
        failing(STORE.unavailable("down"))
    }

    fn identity(store: &Store) -> String {
        store.backend.info().identity.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreachable_member_connects_when_it_is_first_used() {
        let later = MemoryBackend::new().into_store();
        let members = connect_majority(with_two([1, 1], (down(), Some(later.clone())))).await.unwrap();
        assert_eq!((members.len(), identity(&members[2])), (3, identity(&later)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_much_slower_than_the_majority_connects_when_it_is_first_used() {
        let (start, later) = (Instant::now(), MemoryBackend::new().into_store());
        let members = connect_majority(with_two([100, 200], (Box::pin(pending()), Some(later.clone()))));
        assert_eq!(identity(&members.await.unwrap()[2]), identity(&later));
        assert_eq!(start.elapsed(), Duration::from_millis(200) * (1 + GRACE_FACTOR));
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_cannot_connect_later_must_be_reachable_and_is_waited_for() {
        let refused = connect_majority(with_two([1, 1], (down(), None))).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let store = MemoryBackend::new().into_store();
        let slow = store.clone();
        let slow: ConnectFuture = Box::pin(async move {
            sleep(Duration::from_secs(5)).await;
            Ok(slow)
        });
        let members = connect_majority(with_two([1, 1], (slow, None))).await.unwrap();
        assert_eq!(identity(&members[2]), identity(&store));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_majority_the_first_unreachable_member_is_reported() {
        let later = || Some(MemoryBackend::new().into_store());
        let mut members = with_two([1, 1], (down(), later()));
        members[0] = (failing(STORE.unavailable("the first")), later());
        let error = connect_majority(members).await.unwrap_err();
        assert!(format!("{error:?}").contains("the first"), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_of_one_member_is_an_error() {
        let refusing = failing(STORE.refused("wrong password"));
        let members = with_two([1, 1], (refusing, Some(MemoryBackend::new().into_store())));
        let error = connect_majority(members).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    }
}
