//! The engine against a store that follows a script: what no real store shows on demand.
//!
//! Longer than most files, because the script and all that is played with it are read together.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    Attempt, Backend, Claim, Error, Grant, Guard, Info, Kind, Locks, LostReason, Owner, Release, Renewal,
    Request, Result, Store, Token,
};
use tokio::time::{Instant, advance, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);
const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// What the store answers to one call.
#[derive(Clone, Copy, Debug)]
enum Line<T> {
    Say(T),
    /// No answer: unknown.
    Fail,
    /// An answer that asking again will not change.
    Refuse,
    Late(Duration, T),
    Hang,
    Panic,
    LatePanic(Duration),
}
use Line::{Fail, Hang, Late, LatePanic, Panic, Refuse, Say};

/// How the store hints.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hints {
    Silent,
    Endless,
    Once(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Attempt,
    Renew,
    Release,
}

/// The lines of a call are used up one by one; the last one is repeated.
struct Script {
    attempt: VecDeque<Line<Attempt>>,
    renew: VecDeque<Line<Renewal>>,
    release: VecDeque<Line<Release>>,
    hints: Hints,
    /// What was called and when, and what is being called now.
    calls: Vec<(Call, Instant)>,
    running: Option<Call>,
    /// How often the contract with the driver was broken.
    broken: Vec<String>,
}

#[derive(Clone)]
struct Play(Arc<Mutex<Script>>, Info);

impl std::fmt::Debug for Play {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Play")
    }
}

const GRANTED: Attempt = Attempt::Granted(Grant { token: None, valid_for: TTL });
const RENEWED: Renewal = Renewal::Renewed { valid_for: TTL };
const BUSY: Attempt = Attempt::Busy { retry_in: TTL };

impl Play {
    /// A store that grants, renews and releases.
    fn new() -> Self {
        let info = Info {
            store: "script",
            identity: "script".to_owned(),
            kinds: Kind::ALL,
            tokens: false,
            downgrades: false,
            ttl: MS..=TTL * 1000,
        };
        let script = Script {
            attempt: [Say(GRANTED)].into(),
            renew: [Say(RENEWED)].into(),
            release: [Say(Release::Done)].into(),
            hints: Hints::Silent,
            calls: Vec::new(),
            running: None,
            broken: Vec::new(),
        };
        Self(Arc::new(Mutex::new(script)), info)
    }

    fn attempt(self, lines: impl IntoIterator<Item = Line<Attempt>>) -> Self {
        self.script().attempt = lines.into_iter().collect();
        self
    }

    fn renew(self, lines: impl IntoIterator<Item = Line<Renewal>>) -> Self {
        self.script().renew = lines.into_iter().collect();
        self
    }

    fn release(self, lines: impl IntoIterator<Item = Line<Release>>) -> Self {
        self.script().release = lines.into_iter().collect();
        self
    }

    fn hints(self, hints: Hints) -> Self {
        self.script().hints = hints;
        self
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }

    async fn hold(&self) -> Guard {
        self.client().mutex("x").lock().await.expect("the script grants it")
    }

    /// When calls of one sort were made, counted from `start`.
    fn times(&self, call: Call, start: Instant) -> Vec<Duration> {
        let script = self.script();
        let calls = script.calls.iter().filter(|(called, _)| *called == call);
        calls.map(|(_, at)| at.saturating_duration_since(start)).collect()
    }

    fn count(&self, call: Call) -> usize {
        self.script().calls.iter().filter(|(called, _)| *called == call).count()
    }

    /// Waits until nothing of the client is left.
    async fn over(&self, client: &Locks) {
        client.close().await;
        assert_eq!(self.script().broken, [] as [String; 0]);
    }

    async fn play<T>(&self, call: Call, line: Line<T>) -> Result<T> {
        /// Notes when a call is dropped in flight.
        struct Flight<'a>(&'a Play, Call);
        impl Drop for Flight<'_> {
            fn drop(&mut self) {
                if self.0.script().running.take().is_some() && !std::thread::panicking() {
                    self.0.script().broken.push(format!("{:?} dropped in flight", self.1));
                }
            }
        }
        let beside = {
            let mut script = self.script();
            script.calls.push((call, Instant::now()));
            script.running.replace(call)
        };
        if let Some(beside) = beside {
            self.script().broken.push(format!("{call:?} beside {beside:?}"));
        }
        let _flight = Flight(self, call);
        let answer = match line {
            Say(answer) => Ok(answer),
            Fail => Err(Error::Unavailable { store: "script", source: "no answer".into() }),
            Refuse => Err(Error::Store { store: "script", source: "not you".into() }),
            Late(span, answer) => {
                sleep(span).await;
                Ok(answer)
            }
            Hang => pending().await,
            Panic => panic!("as the script says"),
            LatePanic(span) => {
                sleep(span).await;
                panic!("as the script says")
            }
        };
        self.script().running = None;
        answer
    }
}

fn next<T: Copy>(lines: &mut VecDeque<Line<T>>) -> Line<T> {
    if lines.len() > 1 { lines.pop_front() } else { lines.front().copied() }.expect("a script is never empty")
}

impl Backend for Play {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, _: Request) -> Box<dyn Claim> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Claim for Play {
    async fn attempt(&mut self) -> Result<Attempt> {
        let line = next(&mut self.script().attempt);
        self.play(Call::Attempt, line).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let line = next(&mut self.script().renew);
        self.play(Call::Renew, line).await
    }

    async fn release(&mut self) -> Result<Release> {
        let line = next(&mut self.script().release);
        self.play(Call::Release, line).await
    }

    async fn changed(&mut self) {
        let hints = self.script().hints;
        match hints {
            Hints::Silent => pending().await,
            Hints::Endless => {}
            Hints::Once(after) => {
                sleep(after).await;
                self.script().hints = Hints::Silent;
            }
        }
    }
}

/// Whether two times are the same but for a timer's granularity and jitter.
fn about(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) <= 25 * MS
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_at_a_third_of_what_is_left() {
    let play = Play::new();
    let start = Instant::now();
    let held = play.hold().await;
    sleep(TTL + S).await;
    let times = play.times(Call::Renew, start);
    assert!(times.len() == 3, "each renewal begins a new ttl: {times:?}");
    assert!(times.iter().zip([10, 20, 30]).all(|(at, s)| about(*at, s * S)), "{times:?}");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_failing_renewal_is_tried_again_until_the_deadline_and_not_beyond() {
    let play = Play::new().renew([Fail]);
    let start = Instant::now();
    let held = play.hold().await;
    sleep(TTL - S).await;
    assert!(!held.is_lost(), "unknown is not lost");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "lost after {:?}", start.elapsed());
    let times = play.times(Call::Renew, start);
    assert!(about(times[1], 10 * S + 20 * S / 3), "a third of what is left: {times:?}");
    let asked = times.len();
    assert!((5..100).contains(&asked), "asked {asked} times");
    sleep(TTL).await;
    assert_eq!(play.count(Call::Renew), asked, "what is lost is not renewed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_after_failures_keeps_the_lock() {
    let play = Play::new().renew([Fail, Fail, Fail, Say(RENEWED)]);
    let held = play.hold().await;
    sleep(TTL * 3).await;
    assert!(!held.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_says_lost_is_a_loss_at_once() {
    let play = Play::new().renew([Say(Renewal::Lost)]);
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Taken);
    assert!(about(start.elapsed(), TTL / 3), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_granted_is_held_from_before_it_was_asked_for() {
    let play = Play::new().attempt([Late(12 * S, GRANTED)]);
    let held = play.hold().await;
    assert!(held.remaining() <= TTL - 12 * S, "{:?}", held.remaining());
}

#[tokio::test(start_paused = true)]
async fn what_is_renewed_is_held_from_before_it_was_asked_for() {
    let play = Play::new().renew([Late(6 * S, RENEWED), Hang]);
    let start = Instant::now();
    let held = play.hold().await;
    sleep(17 * S).await;
    // Asked for at 10 s, answered at 16 s.
    assert!(about(held.remaining(), TTL - 7 * S), "{:?}", held.remaining());
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), 10 * S + TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_delay_the_news_of_the_loss() {
    let play = Play::new().renew([Hang]);
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_after_the_deadline_does_not_heal_the_loss() {
    let play = Play::new().renew([Late(TTL, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL * 2).await;
    assert!(held.is_lost() && held.remaining().is_zero());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_after_the_deadline_does_not_move_it() {
    let play = Play::new().renew([Late(2 * S, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    // A stall: when the keeper runs again, both the answer and the end of the ttl are there.
    advance(TTL * 2 / 3).await;
    sleep(S).await;
    assert!(held.is_lost(), "another may have had it meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_holder_ask_at_once() {
    let play = Play::new().renew([Say(Renewal::Lost)]).hints(Hints::Once(S));
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Taken);
    assert!(about(start.elapsed(), S), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn hints_without_end_do_not_make_a_holder_hammer() {
    let play = Play::new().hints(Hints::Endless);
    let held = play.hold().await;
    sleep(S).await;
    let asked = play.count(Call::Renew);
    assert!(asked <= 60, "{asked} renewals in a second");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn hints_without_end_do_not_make_a_waiter_hammer() {
    let play = Play::new().attempt([Say(BUSY)]).hints(Hints::Endless);
    timeout(S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let asked = play.count(Call::Attempt);
    assert!((50..300).contains(&asked), "{asked} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_waiter_ask_at_once() {
    let play = Play::new().attempt([Say(BUSY), Say(GRANTED)]).hints(Hints::Once(S));
    let start = Instant::now();
    drop(play.hold().await);
    assert!(about(start.elapsed(), S), "granted after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_a_waiter_asks_when_the_store_said() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: 2 * S }), Say(GRANTED)]);
    let start = Instant::now();
    drop(play.hold().await);
    assert!(about(start.elapsed(), 2 * S), "asked again after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_three_times_in_its_ttl_whatever_the_store_said() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: Duration::MAX })]);
    let start = Instant::now();
    timeout(TTL + S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let times = play.times(Call::Attempt, start);
    assert_eq!(times.len(), 4, "the heartbeat of a waiting claim: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_its_waiters_ask_at_once_is_not_hammered() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: Duration::ZERO })]);
    timeout(S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let asked = play.count(Call::Attempt);
    assert!(asked <= 1001, "{asked} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn four_failures_in_a_row_are_ridden_out() {
    let play = Play::new().attempt([Fail, Fail, Fail, Fail, Say(GRANTED)]);
    drop(play.hold().await);
    assert_eq!(play.count(Call::Attempt), 5);
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_failures_begins_a_new_row() {
    let play = Play::new().attempt([Fail, Fail, Fail, Fail, Say(BUSY), Fail, Fail, Fail, Fail, Say(GRANTED)]);
    drop(play.hold().await);
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_are_reported_and_released() {
    let play = Play::new().attempt([Fail]);
    let client = play.client();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 5);
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1, "one of the attempts may have been granted");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_at_once_and_released() {
    let play = Play::new().attempt([Refuse]);
    let client = play.client();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Store { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 1, "asking again changes nothing");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_try_is_reported_at_once() {
    let play = Play::new().attempt([Fail]);
    let told = play.client().mutex("x").try_lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_in_time_when_the_store_hangs() {
    let play = Play::new().attempt([Hang]);
    let start = Instant::now();
    let told = play.client().mutex("x").lock().wait(3 * S).await;
    assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
    assert!(about(start.elapsed(), 3 * S), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_that_met_failures_names_the_last_one() {
    let play = Play::new().attempt([Fail, Say(BUSY)]);
    let told = play.client().mutex("x").lock().wait(3 * S).await;
    let Err(Error::Timeout { source: Some(source), .. }) = told else { panic!("{told:?}") };
    assert_eq!(source.to_string(), "script is not reachable");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_dropped_in_flight_when_its_caller_leaves() {
    let play = Play::new().attempt([Late(2 * S, GRANTED)]);
    let client = play.client();
    timeout(S, client.mutex("x").lock()).await.expect_err("not yet answered");
    assert_eq!(play.count(Call::Release), 0, "its outcome is not known yet");
    play.over(&client).await;
    assert_eq!((play.count(Call::Attempt), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_not_dropped_in_flight_when_the_guard_leaves() {
    let play = Play::new().renew([Late(2 * S, RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    sleep(TTL / 3 + S).await;
    drop(held);
    play.over(&client).await;
    assert_eq!((play.count(Call::Renew), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_says_lost_ends_with_the_loss() {
    let play = Play::new().renew([Late(2 * S, Renewal::Lost)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let told = timeout(TTL, held.release()).await.expect("it hangs");
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_outlasts_the_hold_ends_with_the_loss() {
    let play = Play::new().renew([Late(TTL, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let told = timeout(TTL, held.release()).await.expect("it hangs");
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Expired, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_panics_ends_with_the_loss() {
    let play = Play::new().renew([LatePanic(2 * S)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let told = timeout(TTL, held.release()).await.expect("it hangs");
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_dropped_in_flight_when_its_caller_leaves() {
    let play = Play::new().release([Late(2 * S, Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    timeout(S, held.release()).await.expect_err("not yet answered");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_it_is_confirmed_with_growing_pauses() {
    let play = Play::new().release([Fail, Fail, Fail, Fail, Fail, Fail, Fail, Say(Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    held.release().await.expect("confirmed in the end");
    let times = play.times(Call::Release, start);
    assert_eq!(times.len(), 8);
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] < 100 * MS, "the first one is soon: {pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] + 25 * MS >= pair[0]), "they grow: {pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 1100 * MS), "and not for ever: {pauses:?}");
    play.over(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_is_a_loss() {
    let play = Play::new().release([Say(Release::Gone)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_token();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}");
    assert!(lost.is_cancelled(), "whoever watches it is told too");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_finds_nothing_tells_those_who_watch_the_lock() {
    let play = Play::new().release([Say(Release::Gone)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_token();
    drop(held);
    play.over(&client).await;
    assert!(lost.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_after_one_that_failed_is_a_normal_end() {
    let play = Play::new().release([Fail, Say(Release::Gone)]);
    let held = play.hold().await;
    let lost = held.lost_token();
    held.release().await.expect("the one that failed may have done it");
    assert!(!lost.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_after_the_deadline_is_a_normal_end() {
    let play = Play::new().release([Late(TTL, Release::Gone)]);
    let held = play.hold().await;
    let lost = held.lost_token();
    held.release().await.expect("the store has forgotten it by itself");
    assert!(!lost.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_no_trace_is_no_loss() {
    let play = Play::new().attempt([Fail]).release([Say(Release::Gone)]);
    let client = play.client();
    let told = client.mutex("x").try_lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_given_up_when_the_store_has_forgotten_the_claim() {
    let play = Play::new().release([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert!(start.elapsed() <= TTL + 2 * S, "told after {:?}", start.elapsed());
    play.over(&client).await;
    assert!(start.elapsed() <= TTL + 2 * S, "given up after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_is_told_and_not_repeated() {
    let play = Play::new().release([Refuse]);
    let client = play.client();
    let told = client.mutex("x").lock().await.expect("granted").release().await;
    assert!(matches!(told, Err(Error::Store { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_released_all_the_same() {
    let play = Play::new().renew([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    held.lost().await;
    drop(held);
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1, "the last renewal may have reached the store");
}

#[tokio::test(start_paused = true)]
async fn a_busy_try_asks_once_and_releases_nothing() {
    let play = Play::new().attempt([Say(BUSY)]);
    let client = play.client();
    assert!(client.mutex("x").try_lock().await.expect("busy is no error").is_none());
    play.over(&client).await;
    assert_eq!((play.count(Call::Attempt), play.count(Call::Release)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_never_renewed_whatever_the_hints() {
    for hints in [Hints::Silent, Hints::Endless] {
        let play = Play::new().hints(hints);
        let held = play.client().mutex("x").lock().lease(TTL).await.expect("granted");
        assert_eq!(held.lost().await, LostReason::Expired);
        assert_eq!(play.count(Call::Renew), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn renew_every_is_how_often_it_is_renewed() {
    let play = Play::new();
    let held = play.client().mutex("x").lock().renew_every(3 * S).await.expect("granted");
    sleep(TTL + S).await;
    assert_eq!(play.count(Call::Renew), 10);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_a_renewal_loses_the_lock() {
    let play = Play::new().renew([Panic]);
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Abandoned);
    assert!(held.is_lost() && held.remaining().is_zero());
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_an_attempt_is_an_error() {
    let play = Play::new().attempt([Panic]);
    let told = play.client().mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_a_release_is_an_error() {
    let play = Play::new().release([Panic]);
    let told = play.hold().await.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_at_the_first_look_after_its_time() {
    let play = Play::new();
    let held = play.hold().await;
    let lost = held.lost_token();
    assert!(!held.is_lost());
    // Time passes, and no other task has run yet.
    let mut passing = Box::pin(advance(TTL));
    poll_fn(|context| Poll::Ready(passing.as_mut().poll(context).is_ready())).await;
    assert!(held.is_lost(), "it compares the clock itself");
    assert!(lost.is_cancelled(), "who notices it tells everybody");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_even_if_it_was_never_taken_from_the_task() {
    let play = Play::new().attempt([Late(S, GRANTED)]);
    let client = play.client();
    let mut asked = Box::pin(client.mutex("x").lock());
    timeout(S / 2, &mut asked).await.expect_err("not yet answered");
    sleep(S).await;
    assert_eq!(play.count(Call::Release), 0, "granted, and waiting to be taken");
    drop(asked);
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_lets_the_attempt_in_flight_end() {
    let play = Play::new().attempt([Late(S, BUSY)]);
    let client = play.client();
    let lock = client.mutex("x").lock();
    let (told, ()) = tokio::join!(lock, async {
        sleep(S / 2).await;
        client.close().await;
    });
    assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_lets_no_other_task_of_an_owner_in() {
    let play = Play::new().attempt([Say(BUSY), Say(GRANTED)]);
    let (client, me) = (play.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let told = tokio::join!(lock.lock(), lock.lock(), async {
        sleep(S).await;
        client.close().await;
    });
    assert!(matches!(told, (Err(Error::Closed { .. }), Err(Error::Closed { .. }), ())), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Attempt), 1, "a closed client asks for nothing");
}

#[tokio::test(start_paused = true)]
async fn the_token_of_the_guard_is_that_of_the_grant() {
    let token = Token::new(42);
    let play = Play::new().attempt([Say(Attempt::Granted(Grant { token, valid_for: TTL }))]);
    assert_eq!(play.hold().await.token(), token);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

#[test]
fn a_runtime_that_ends_takes_its_locks_along_and_says_so() {
    let play = Play::new();
    let runtime = runtime();
    let held = runtime.block_on(play.hold());
    assert!(!held.is_lost());
    drop(runtime);
    assert!(held.is_lost(), "nobody renews it any more");
    let reason = self::runtime().block_on(held.lost());
    assert_eq!(reason, LostReason::Abandoned);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "to block the runtime is what this is about")]
fn a_guard_is_lost_at_the_first_look_after_its_runtime_was_blocked() {
    let ttl = 50 * MS;
    let play = Play::new().attempt([Say(Attempt::Granted(Grant { token: None, valid_for: ttl }))]);
    runtime().block_on(async {
        let held = play.client().mutex("x").lock().ttl(ttl).await.expect("granted");
        std::thread::sleep(ttl * 2);
        assert!(held.is_lost(), "the store may have given it to another");
    });
}

#[test]
fn a_guard_dropped_on_a_thread_without_a_runtime_is_released() {
    let play = Play::new();
    let client = play.client();
    runtime().block_on(async {
        let held = client.mutex("x").lock().await.expect("granted");
        std::thread::spawn(move || drop(held)).join().expect("no panic");
        play.over(&client).await;
    });
    assert_eq!(play.count(Call::Release), 1);
}

#[test]
fn a_guard_that_is_forgotten_is_renewed_for_as_long_as_its_runtime_lives() {
    let play = Play::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime can be built").block_on(async {
        mem::forget(play.hold().await);
        sleep(TTL * 2 + S).await;
    });
    assert_eq!((play.count(Call::Renew), play.count(Call::Release)), (6, 0));
}
