//! Tests of the keys of detached holds, alone and beside other readers and permits, and after a
//! resumption.

use std::time::Duration;

use dlock_core::{
    ClaimId, Kind, LockName, LockOptions, Ticket, Token, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};

use crate::common::{Bench, claim, connect, granted, relay::Relay, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_detached_hold_lasts_for_its_time_and_a_resumed_one_for_its_ttl,
        a_late_request_of_an_earlier_holder_changes_nothing,
        a_detached_hold_ends_by_itself,
        a_detached_reader_stays_while_others_come_and_go,
        a_reader_that_leaves_restores_the_ttl_that_redisson_has_shortened,
        a_detached_permit_stays_while_others_come_and_go,
        a_detachment_whose_reply_is_lost_is_sent_again,
        the_holder_of_a_resumed_hold_is_notified_of_a_lost_key_at_once,
        a_ticket_with_the_id_of_any_holder_resumes_its_hold,
    }
}

const ALL: [Kind; 5] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];
const TEN_MINUTES: Duration = Duration::from_secs(600);
const TTL: u64 = 30_000;

/// Creates a claim that has sent no request yet.
fn fresh(store: &Store, kind: Kind, ttl: u64) -> Box<dyn Claim> {
    let request = Request::new(LockName::new("foo").expect("legal"), kind, Duration::from_millis(ttl));
    store.backend.claim(request.wait(Wait::Never))
}

/// Creates the claim that releases the hold of a ticket.
fn of_ticket(store: &Store, kind: Kind, ticket: ClaimId) -> Box<dyn Claim> {
    let request = Request::new(LockName::new("foo").expect("legal"), kind, Duration::from_millis(TTL));
    store.backend.claim(request.id(ticket).wait(Wait::Never))
}

impl Bench {
    /// Returns the remaining time of each key of the lock except its token, in ms.
    async fn remaining_times(&self) -> Vec<i64> {
        let mut keys: Vec<String> = self.query("KEYS *").await;
        keys.retain(|key| !key.starts_with("redisson_lock_token:") && !key.starts_with("dlock_who:"));
        let mut times = Vec::new();
        for key in keys {
            times.push(self.query(&format!("PTTL {key}")).await);
        }
        times
    }

    /// Asserts that all keys of the lock expire after `ttl`, in ms.
    async fn assert_all_expire_after(&self, ttl: u64, context: &str) {
        let (times, ttl) = (self.remaining_times().await, ttl as i64);
        let is_near = |left: &i64| (ttl - 15_000..=ttl).contains(left);
        assert!(!times.is_empty() && times.iter().all(is_near), "{context}: {times:?}, not {ttl}");
    }
}

/// Detaches a hold. Returns the id of its ticket.
async fn detach(claim: &mut Box<dyn Claim>, lasting: Duration) -> ClaimId {
    let ticket = ClaimId::random();
    detach_as(claim, lasting, ticket).await;
    ticket
}

async fn detach_as(claim: &mut Box<dyn Claim>, lasting: Duration, ticket: ClaimId) {
    let detached = claim.detach(lasting, ticket).await.expect("a reply");
    assert_eq!(detached, Renewal::Renewed { valid_for: lasting });
}

/// Resumes a hold. Returns its token, and the remaining time of the detached hold.
async fn resume(claim: &mut Box<dyn Claim>, ticket: ClaimId) -> (Option<Token>, Option<Duration>) {
    match claim.resume(ticket).await.expect("a reply") {
        Resumption::Resumed { grant, remaining } => (grant.token, remaining),
        Resumption::Gone => panic!("there is no detached hold"),
    }
}

async fn a_detached_hold_lasts_for_its_time_and_a_resumed_one_for_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    for (params, kinds) in [("", &ALL[..]), ("dialect=plain", &[Kind::Mutex])] {
        let (first, second) = (bench.store(params).await, bench.store(params).await);
        assert!(first.backend.info().detaches);
        for kind in kinds {
            let context = format!("{kind} {params}");
            let (mut held, _) = claim(&first, "foo", *kind, TTL, Wait::Never);
            let Attempt::Granted(granted) = held.attempt().await.unwrap() else {
                panic!("{context}: not free")
            };
            let ticket = detach(&mut held, TEN_MINUTES / 2).await;
            bench.assert_all_expire_after(300_000, &context).await;
            // A second detachment extends the time, and does not shorten it.
            detach_as(&mut held, TEN_MINUTES, ticket).await;
            bench.assert_all_expire_after(600_000, &context).await;
            detach_as(&mut held, TEN_MINUTES / 2, ticket).await;
            bench.assert_all_expire_after(600_000, &context).await;
            let mut taken = fresh(&second, *kind, TTL);
            let (token, remaining) = resume(&mut taken, ticket).await;
            assert_eq!(token, granted.token, "{context}");
            assert!(remaining.is_some_and(|left| left > TEN_MINUTES * 9 / 10), "{context}: {remaining:?}");
            bench.assert_all_expire_after(TTL, &context).await;
            assert_eq!(resume(&mut taken, ticket).await, (token, None), "{context}: not idempotent");
            assert_eq!(
                fresh(&first, *kind, TTL).resume(ticket).await.unwrap(),
                Resumption::Gone,
                "{context}: two claims hold"
            );
            let ticket = detach(&mut taken, TEN_MINUTES).await;
            // A claim whose detachment seemed to fail resumes its own hold.
            resume(&mut taken, ticket).await;
            bench.assert_all_expire_after(TTL, &context).await;
            detach_as(&mut taken, TEN_MINUTES, ticket).await;
            assert_eq!(of_ticket(&first, *kind, ticket).release().await.unwrap(), Release::Done, "{context}");
            assert_eq!(bench.remaining_times().await, [0; 0], "{context}: keys are left");
            assert_eq!(taken.detach(TEN_MINUTES, ticket).await.unwrap(), Renewal::Lost, "{context}");
            assert_eq!(taken.resume(ticket).await.unwrap(), Resumption::Gone, "{context}");
            assert_eq!(taken.renew().await.unwrap(), Renewal::Lost, "{context}");
            assert_eq!(bench.remaining_times().await, [0; 0], "{context}: a detachment has created keys");
        }
    }
}

/// The calls have the order in which the server executes the requests.
async fn a_late_request_of_an_earlier_holder_changes_nothing() {
    let Some(bench) = Bench::new().await else { return };
    for (params, kinds) in [("", &ALL[..]), ("dialect=plain", &[Kind::Mutex])] {
        let store = bench.store(params).await;
        for kind in kinds {
            let context = format!("{kind} {params}");
            let (mut first, _) = claim(&store, "foo", *kind, TTL, Wait::Never);
            assert!(matches!(first.attempt().await.unwrap(), Attempt::Granted(_)), "{context}: not free");
            let mut late_release = of_ticket(&store, *kind, first_id(&bench, *kind).await);
            let ticket = detach(&mut first, TEN_MINUTES).await;
            assert_eq!(
                first.renew().await.unwrap(),
                Renewal::Lost,
                "{context}: renewed after its detachment"
            );
            assert_eq!(late_release.release().await.unwrap(), Release::Gone, "{context}");
            bench.assert_all_expire_after(600_000, &context).await;
            let mut second = fresh(&store, *kind, 600_000);
            resume(&mut second, ticket).await;
            assert_eq!(
                first.renew().await.unwrap(),
                Renewal::Lost,
                "{context}: renewed after its resumption by another claim"
            );
            assert_eq!(of_ticket(&store, *kind, ticket).release().await.unwrap(), Release::Gone, "{context}");
            bench.assert_all_expire_after(600_000, &context).await;
            assert_eq!(second.release().await.unwrap(), Release::Done, "{context}");
            assert_eq!(bench.remaining_times().await, [0; 0], "{context}: keys are left");
        }
    }
}

/// Returns the id of the only holder of `foo` from the server.
async fn first_id(bench: &Bench, kind: Kind) -> ClaimId {
    let locks = bench.locks("").await;
    let owner = match locks.inspect("foo").await {
        Ok(Some(state)) => state.holders[0].id.clone(),
        _ => bench.query::<String>("GET foo").await,
    };
    let hex: String = owner.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let id = u128::from_str_radix(&hex, 16).unwrap_or_else(|_| panic!("{kind}: {owner}"));
    ClaimId::from_bytes(id.to_be_bytes())
}

async fn a_detached_hold_ends_by_itself() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    for kind in ALL {
        let (mut held, _) = claim(&store, "foo", kind, TTL, Wait::Never);
        granted(held.attempt().await);
        detach(&mut held, Duration::from_millis(300)).await;
        let locks = bench.locks("").await;
        // A waiter of another kind, which no remains of the hold may block.
        let other = if kind == Kind::Read { Kind::Write } else { kind };
        let options = LockOptions::new().ttl(TEN_MINUTES);
        let lock = locks.of(other, "foo");
        let next = lock.lock(&options);
        soon("the waiter is not granted after the end of the hold", next)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(held.renew().await.unwrap(), Renewal::Lost, "{kind}");
    }
}

async fn a_detached_reader_stays_while_others_come_and_go() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut stays, _) = claim(&store, "foo", Kind::Read, TTL, Wait::Never);
    let (mut other, _) = claim(&store, "foo", Kind::Read, TTL, Wait::Never);
    granted(other.attempt().await);
    granted(stays.attempt().await);
    let ticket = detach(&mut stays, TEN_MINUTES).await;
    assert!(matches!(other.renew().await.unwrap(), Renewal::Renewed { .. }));
    bench.assert_ttl_of_lock(600_000).await;
    other.release().await.unwrap();
    bench.assert_all_expire_after(600_000, "alone").await;
    // After its resumption, its time is its ttl again. The longer time of the other reader counts.
    let (mut other, _) = claim(&store, "foo", Kind::Read, 90_000, Wait::Never);
    granted(other.attempt().await);
    let mut stays = fresh(&store, Kind::Read, TTL);
    resume(&mut stays, ticket).await;
    bench.assert_ttl_of_lock(90_000).await;
    detach(&mut stays, TEN_MINUTES).await;
    stays.release().await.unwrap();
    bench.assert_all_expire_after(90_000, "the other reader").await;
}

/// The renewal of a reader of Redisson sets the hash's ttl to the reader's own, whatever other
/// readers need.
async fn a_reader_that_leaves_restores_the_ttl_that_redisson_has_shortened() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let (mut stays, _) = claim(&store, "foo", Kind::Read, TTL, Wait::Never);
    granted(stays.attempt().await);
    detach(&mut stays, TEN_MINUTES).await;
    bench.send("PEXPIRE foo 30000").await;
    let (mut other, _) = claim(&store, "foo", Kind::Read, TTL, Wait::Never);
    granted(other.attempt().await);
    bench.assert_ttl_of_lock(30_000).await;
    other.release().await.unwrap();
    bench.assert_all_expire_after(600_000, "alone").await;
}

async fn a_detached_permit_stays_while_others_come_and_go() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("").await;
    let permit = |ttl| {
        let request =
            Request::new(LockName::new("foo").expect("legal"), Kind::Permit, Duration::from_millis(ttl));
        store.backend.claim(request.limit(2.try_into().expect("not zero")))
    };
    let (mut stays, mut other) = (permit(TTL), permit(TTL));
    granted(stays.attempt().await);
    granted(other.attempt().await);
    let ticket = detach(&mut stays, TEN_MINUTES).await;
    assert!(matches!(other.renew().await.unwrap(), Renewal::Renewed { .. }));
    bench.assert_all_expire_after(600_000, "two permits").await;
    other.release().await.unwrap();
    bench.assert_all_expire_after(600_000, "alone").await;
    resume(&mut stays, ticket).await;
    bench.assert_all_expire_after(TTL, "resumed").await;
}

async fn a_detachment_whose_reply_is_lost_is_sent_again() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let relay = Relay::to(server.address()).await;
    let store = connect(&format!("redis://{}", relay.address)).await.unwrap();
    for kind in ALL {
        let (mut held, _) = claim(&store, "foo", kind, TTL, Wait::Never);
        granted(held.attempt().await);
        relay.lose_reply();
        detach(&mut held, TEN_MINUTES).await;
        bench.assert_all_expire_after(600_000, &kind.to_string()).await;
        held.release().await.unwrap();
    }
}

async fn the_holder_of_a_resumed_hold_is_notified_of_a_lost_key_at_once() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egx").await;
    let (first, second) = (bench.locks("").await, bench.locks("keyspace_events=on").await);
    let options = LockOptions::new().ttl(TEN_MINUTES);
    let ticket = first.mutex("foo").lock().await.unwrap().detach(TEN_MINUTES).await.unwrap();
    let held = second.with_defaults(options).resume(&ticket).await.unwrap();
    bench.wait_for_subscriber("__keyevent@0__:del").await;
    bench.send("DEL foo").await;
    soon("the loss was not reported to the holder", held.lost()).await;
}

/// The server does not mark detached holds.
async fn a_ticket_with_the_id_of_any_holder_resumes_its_hold() {
    let Some(bench) = Bench::new().await else { return };
    let (first, second) = (bench.locks("").await, bench.locks("").await);
    let mut holds = Vec::new();
    for kind in ALL {
        let options = LockOptions::new().ttl(Duration::from_secs(6));
        let held = first.of(kind, format!("foo-{kind}")).lock(&options).await.unwrap();
        let (token, id) = (held.token().expect("Redis has tokens"), held.id().expect("one claim"));
        let ticket: Ticket = format!("dlock1:{kind}:{token}:{id}:foo-{kind}").parse().unwrap();
        let resumed = second.resume(&ticket).await.unwrap();
        assert_eq!(resumed.token(), Some(token), "{kind}");
        holds.push((held, resumed));
    }
    for (held, resumed) in holds {
        soon("the loss is not reported to the first holder", held.lost()).await;
        assert!(!resumed.is_lost(), "{resumed:?}");
        resumed.release().await.unwrap();
    }
}

impl Bench {
    async fn assert_ttl_of_lock(&self, ttl: i64) {
        let left: i64 = self.query("PTTL foo").await;
        assert!((ttl - 15_000..=ttl).contains(&left), "the lock expires in {left} ms, not in {ttl}");
    }
}
