//! Detached holds: what they are on the server, beside other readers and permits, and when they are taken back.

use std::time::Duration;

use dlock_core::{
    ClaimId, Kind, LockName, LockOptions, Token, Wait,
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
    }
}

const ALL: [Kind; 5] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];
const TEN_MINUTES: Duration = Duration::from_secs(600);
const TTL: u64 = 30_000;

/// A claim that has not asked for anything yet.
fn fresh(store: &Store, kind: Kind, ttl: u64) -> Box<dyn Claim> {
    let request = Request::new(LockName::new("foo").expect("legal"), kind, Duration::from_millis(ttl));
    store.backend.claim(request.wait(Wait::Never))
}

/// The claim of a holder of a ticket, for a release.
fn of_ticket(store: &Store, kind: Kind, ticket: ClaimId) -> Box<dyn Claim> {
    let request = Request::new(LockName::new("foo").expect("legal"), kind, Duration::from_millis(TTL));
    store.backend.claim(request.id(ticket).wait(Wait::Never))
}

impl Bench {
    /// How long each key of the lock stays, but its token.
    async fn lasts(&self) -> Vec<i64> {
        let mut keys: Vec<String> = self.query("KEYS *").await;
        keys.retain(|key| !key.starts_with("redisson_lock_token:") && !key.starts_with("dlock_who:"));
        let mut lasts = Vec::new();
        for key in keys {
            lasts.push(self.query(&format!("PTTL {key}")).await);
        }
        lasts
    }

    async fn assert_all_last(&self, what: &str, ttl: u64) {
        let (lasts, ttl) = (self.lasts().await, ttl as i64);
        let near = |left: &i64| (ttl - 15_000..=ttl).contains(left);
        assert!(!lasts.is_empty() && lasts.iter().all(near), "{what}: {lasts:?}, not {ttl}");
    }
}

/// Detaches a hold. Returns the id of its ticket.
async fn detach(claim: &mut Box<dyn Claim>, lasting: Duration) -> ClaimId {
    let ticket = ClaimId::random();
    detach_as(claim, lasting, ticket).await;
    ticket
}

async fn detach_as(claim: &mut Box<dyn Claim>, lasting: Duration, ticket: ClaimId) {
    let detached = claim.detach(lasting, ticket).await.expect("an answer");
    assert_eq!(detached, Renewal::Renewed { valid_for: lasting });
}

/// Takes a hold over. Returns its token, and how long it would have lasted.
async fn take_over(claim: &mut Box<dyn Claim>, ticket: ClaimId) -> (Option<Token>, Option<Duration>) {
    match claim.resume(ticket).await.expect("an answer") {
        Resumption::Resumed { grant, remaining } => (grant.token, remaining),
        Resumption::Gone => panic!("it is not there"),
    }
}

async fn a_detached_hold_lasts_for_its_time_and_a_resumed_one_for_its_ttl() {
    let Some(bench) = Bench::new().await else { return };
    for (params, kinds) in [("", &ALL[..]), ("dialect=plain", &[Kind::Mutex])] {
        let (here, there) = (bench.store(params).await, bench.store(params).await);
        assert!(here.backend.info().detaches);
        for kind in kinds {
            let what = format!("{kind} {params}");
            let (mut held, _) = claim(&here, "foo", *kind, TTL, Wait::Never);
            let Attempt::Granted(granted) = held.attempt().await.unwrap() else { panic!("{what}: not free") };
            let ticket = detach(&mut held, TEN_MINUTES / 2).await;
            bench.assert_all_last(&what, 300_000).await;
            // Again, a longer time counts, and a shorter one does not.
            detach_as(&mut held, TEN_MINUTES, ticket).await;
            bench.assert_all_last(&what, 600_000).await;
            detach_as(&mut held, TEN_MINUTES / 2, ticket).await;
            bench.assert_all_last(&what, 600_000).await;
            let mut taken = fresh(&there, *kind, TTL);
            let (token, remaining) = take_over(&mut taken, ticket).await;
            assert_eq!(token, granted.token, "{what}");
            assert!(remaining.is_some_and(|left| left > TEN_MINUTES * 9 / 10), "{what}: {remaining:?}");
            bench.assert_all_last(&what, TTL).await;
            assert_eq!(take_over(&mut taken, ticket).await, (token, None), "{what}: not idempotent");
            assert_eq!(
                fresh(&here, *kind, TTL).resume(ticket).await.unwrap(),
                Resumption::Gone,
                "{what}: two hold"
            );
            let ticket = detach(&mut taken, TEN_MINUTES).await;
            // The claim whose detachment seemed to fail takes its own hold back.
            take_over(&mut taken, ticket).await;
            bench.assert_all_last(&what, TTL).await;
            detach_as(&mut taken, TEN_MINUTES, ticket).await;
            assert_eq!(of_ticket(&here, *kind, ticket).release().await.unwrap(), Release::Done, "{what}");
            assert_eq!(bench.lasts().await, [0; 0], "{what}: something is left");
            assert_eq!(taken.detach(TEN_MINUTES, ticket).await.unwrap(), Renewal::Lost, "{what}");
            assert_eq!(taken.resume(ticket).await.unwrap(), Resumption::Gone, "{what}");
            assert_eq!(taken.renew().await.unwrap(), Renewal::Lost, "{what}");
            assert_eq!(bench.lasts().await, [0; 0], "{what}: a detachment creates");
        }
    }
}

/// The claims are asked in the order in which the server executes their requests.
async fn a_late_request_of_an_earlier_holder_changes_nothing() {
    let Some(bench) = Bench::new().await else { return };
    for (params, kinds) in [("", &ALL[..]), ("dialect=plain", &[Kind::Mutex])] {
        let store = bench.store(params).await;
        for kind in kinds {
            let what = format!("{kind} {params}");
            let (mut first, _) = claim(&store, "foo", *kind, TTL, Wait::Never);
            assert!(matches!(first.attempt().await.unwrap(), Attempt::Granted(_)), "{what}: not free");
            let mut late_release = of_ticket(&store, *kind, first_id(&bench, *kind).await);
            let ticket = detach(&mut first, TEN_MINUTES).await;
            assert_eq!(first.renew().await.unwrap(), Renewal::Lost, "{what}: renewed after its detachment");
            assert_eq!(late_release.release().await.unwrap(), Release::Gone, "{what}");
            bench.assert_all_last(&what, 600_000).await;
            let mut second = fresh(&store, *kind, 600_000);
            take_over(&mut second, ticket).await;
            assert_eq!(first.renew().await.unwrap(), Renewal::Lost, "{what}: renewed under its heir");
            assert_eq!(of_ticket(&store, *kind, ticket).release().await.unwrap(), Release::Gone, "{what}");
            bench.assert_all_last(&what, 600_000).await;
            assert_eq!(second.release().await.unwrap(), Release::Done, "{what}");
            assert_eq!(bench.lasts().await, [0; 0], "{what}: something is left");
        }
    }
}

/// Id of the only holder of `foo`, as the server has it.
async fn first_id(bench: &Bench, kind: Kind) -> ClaimId {
    let locks = bench.locks("").await;
    let shown = match locks.inspect("foo").await {
        Ok(Some(state)) => state.holders[0].id.clone(),
        _ => bench.query::<String>("GET foo").await,
    };
    let hex: String = shown.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let id = u128::from_str_radix(&hex, 16).unwrap_or_else(|_| panic!("{kind}: {shown}"));
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
        // A waiter of another kind: nothing of the hold may be in its way.
        let other = if kind == Kind::Read { Kind::Write } else { kind };
        let options = LockOptions::new().ttl(TEN_MINUTES);
        let lock = locks.of(other, "foo");
        let next = lock.lock(&options);
        soon("its time is over, and the waiter is not let in", next).await.unwrap().release().await.unwrap();
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
    bench.assert_all_last("alone", 600_000).await;
    // Taken back, its time is its ttl again, and that of the other reader counts if it is longer.
    let (mut other, _) = claim(&store, "foo", Kind::Read, 90_000, Wait::Never);
    granted(other.attempt().await);
    let mut stays = fresh(&store, Kind::Read, TTL);
    take_over(&mut stays, ticket).await;
    bench.assert_ttl_of_lock(90_000).await;
    detach(&mut stays, TEN_MINUTES).await;
    stays.release().await.unwrap();
    bench.assert_all_last("the other reader", 90_000).await;
}

/// A reader of Redisson's sets the hash's ttl to its own when it is renewed, whoever else reads.
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
    bench.assert_all_last("alone", 600_000).await;
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
    bench.assert_all_last("two permits", 600_000).await;
    other.release().await.unwrap();
    bench.assert_all_last("alone", 600_000).await;
    take_over(&mut stays, ticket).await;
    bench.assert_all_last("taken back", TTL).await;
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
        bench.assert_all_last(&kind.to_string(), 600_000).await;
        held.release().await.unwrap();
    }
}

async fn the_holder_of_a_resumed_hold_is_notified_of_a_lost_key_at_once() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("CONFIG SET notify-keyspace-events Egx").await;
    let (here, there) = (bench.locks("").await, bench.locks("keyspace_events=on").await);
    let options = LockOptions::new().ttl(TEN_MINUTES);
    let ticket = here.mutex("foo").lock().await.unwrap().detach(TEN_MINUTES).await.unwrap();
    let held = there.with_defaults(options).resume(&ticket).await.unwrap();
    bench.wait_for_subscriber("__keyevent@0__:del").await;
    bench.send("DEL foo").await;
    soon("the holder was not told", held.lost()).await;
}

impl Bench {
    async fn assert_ttl_of_lock(&self, ttl: i64) {
        let left: i64 = self.query("PTTL foo").await;
        assert!((ttl - 15_000..=ttl).contains(&left), "the lock stays for {left} ms, not {ttl}");
    }
}
