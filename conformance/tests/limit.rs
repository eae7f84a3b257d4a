//! A case whose driver hangs fails, whether the driver waits, blocks or spins. The message names
//! the step.

use std::{
    future::pending,
    sync::{
        Arc,
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
use parking_lot::Mutex;

/// Way in which the attempts of a claim hang.
#[derive(Clone)]
enum Hang {
    /// The future of the attempt is never ready.
    Pending,
    /// The attempt blocks its thread until the sender is dropped.
    Blocks(Arc<Mutex<mpsc::Receiver<()>>>),
    /// The attempt spins on its thread until this is true.
    Spins(Arc<AtomicBool>),
}

/// A store in which every attempt hangs.
struct Hanging(Hang, Clock);

#[async_trait]
impl Fixture for Hanging {
    fn name(&self) -> &str {
        "hanging"
    }

    async fn connect(&self) -> Result<Store> {
        let hang = self.0.clone();
        Ok(wrap(MemoryBackend::new().into_store(), move |claim, _| {
            Box::new(HangingClaim(claim, hang.clone()))
        }))
    }

    fn clock(&self) -> Clock {
        self.1
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A claim whose attempt hangs.
struct HangingClaim(Box<dyn Claim>, Hang);

#[async_trait]
impl Claim for HangingClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        match &self.1 {
            Hang::Pending => pending().await,
            Hang::Blocks(receiver) => drop(receiver.lock().recv()),
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

/// Returns the message of a case that takes a lock without a wait limit.
fn message(hang: Hang, clock: Clock) -> String {
    let case = cases::all()
        .into_iter()
        .find(|case| case.to_string() == "mutex::handles_of_one_client_exclude_each_other");
    judge(Arc::new(Hanging(hang, clock)), Row::Plain, case.expect("the case is in the table"))
        .expect_err("a case passed on a store that never answers")
}

fn assert_names_the_step(message: &str) {
    for text in ["did not end within", "claim for mutex `case-", "`attempt` does not return"] {
        assert!(message.contains(text), "the message does not contain `{text}`: {message}");
    }
}

#[test]
fn a_case_whose_store_never_answers_fails_and_names_the_call() {
    for clock in [Clock::Paused, Clock::Real] {
        assert_names_the_step(&message(Hang::Pending, clock));
    }
}

#[test]
fn a_case_whose_thread_is_blocked_fails_and_names_the_call() {
    for clock in [Clock::Paused, Clock::Real] {
        let (sender, receiver) = mpsc::channel();
        assert_names_the_step(&message(Hang::Blocks(Arc::new(Mutex::new(receiver))), clock));
        drop(sender);
    }
}

#[test]
fn a_case_whose_thread_spins_fails_and_names_the_call() {
    let over = Arc::new(AtomicBool::new(false));
    assert_names_the_step(&message(Hang::Spins(Arc::clone(&over)), Clock::Paused));
    over.store(true, Relaxed);
}

#[test]
fn a_step_that_takes_too_long_is_named_with_its_line_of_code() {
    let case =
        cases::all().into_iter().find(|case| case.to_string() == "close::closing_waits_for_what_is_held");
    let result = judge(
        Arc::new(Hanging(Hang::Pending, Clock::Paused)),
        Row::Plain,
        case.expect("the case is in the table"),
    );
    let message = result.expect_err("a case passed on a store that never answers");
    assert!(
        message.contains("a free lock was not granted") && message.contains("cases/close.rs:"),
        "the outer step is not named: {message}"
    );
    assert!(message.contains("take the lock as mutex"), "the inner step is not named: {message}");
}
