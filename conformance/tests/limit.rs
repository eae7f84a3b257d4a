//! A case that hangs is a failure that says where it hangs, in whatever manner a driver hangs.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture, Row, cases, judge, wrap::wrap};
use dlock_core::{
    Error, Result,
    driver::{Attempt, Claim, Release, Renewal, Store},
    memory::MemoryBackend,
};

/// How the first attempt of a claim hangs.
#[derive(Clone)]
enum Hang {
    /// Its future is never ready.
    Pending,
    /// It blocks its thread until the sender is gone.
    Blocks(Arc<Mutex<mpsc::Receiver<()>>>),
    /// It keeps its thread busy until this is true.
    Spins(Arc<AtomicBool>),
}

struct Hanging(Hang, Clock);

#[async_trait]
impl Fixture for Hanging {
    fn name(&self) -> &str {
        "hanging"
    }

    async fn connect(&self) -> Result<Store> {
        let hang = self.0.clone();
        Ok(wrap(MemoryBackend::new().into_store(), move |claim, _| Box::new(Hung(claim, hang.clone()))))
    }

    fn clock(&self) -> Clock {
        self.1
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(1)
    }
}

struct Hung(Box<dyn Claim>, Hang);

#[async_trait]
impl Claim for Hung {
    async fn attempt(&mut self) -> Result<Attempt> {
        match &self.1 {
            Hang::Pending => pending().await,
            Hang::Blocks(until) => drop(until.lock().expect("nobody panics").recv()),
            Hang::Spins(over) => {
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            }
        }
        Err(Error::Unavailable { store: "hanging", source: "the test is over".into() })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

/// What a case that takes a lock without a limit of its own fails with.
fn message(hang: Hang, clock: Clock) -> String {
    let case = cases::all()
        .into_iter()
        .find(|case| case.to_string() == "mutex::handles_of_one_client_exclude_each_other");
    judge(Arc::new(Hanging(hang, clock)), Row::Plain, case.expect("the case is in the table"))
        .expect_err("a case passed on a store that never answers")
}

fn says_where(message: &str) {
    for word in ["did not end within", "claim for mutex `case-", "`attempt` does not return"] {
        assert!(message.contains(word), "does not say `{word}`: {message}");
    }
}

#[test]
fn a_case_whose_store_never_answers_ends_and_says_where_it_waited() {
    for clock in [Clock::Paused, Clock::Real] {
        says_where(&message(Hang::Pending, clock));
    }
}

#[test]
fn a_case_whose_thread_is_blocked_ends_and_says_where_it_waited() {
    for clock in [Clock::Paused, Clock::Real] {
        let (over, until) = mpsc::channel();
        says_where(&message(Hang::Blocks(Arc::new(Mutex::new(until))), clock));
        drop(over);
    }
}

#[test]
fn a_case_whose_thread_spins_ends_and_says_where_it_waited() {
    let over = Arc::new(AtomicBool::new(false));
    says_where(&message(Hang::Spins(Arc::clone(&over)), Clock::Paused));
    over.store(true, Relaxed);
}

#[test]
fn a_step_that_takes_too_long_is_named_with_its_place_in_the_code() {
    let case =
        cases::all().into_iter().find(|case| case.to_string() == "close::closing_waits_for_what_is_held");
    let told =
        judge(Arc::new(Hanging(Hang::Pending, Clock::Paused)), Row::Plain, case.expect("in the table"));
    let told = told.expect_err("a case passed on a store that never answers");
    assert!(told.contains("nobody holds it") && told.contains("cases/close.rs:"), "{told}");
    assert!(told.contains("take the lock as mutex"), "the inner step is not named: {told}");
}
