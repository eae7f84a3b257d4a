//! The test of the tests: stores with one planted bug each, and who catches it.

use std::{
    any::Any,
    cell::Cell,
    fmt,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{Arc, Once},
};

use async_trait::async_trait;
use dlock_conformance::{
    Clock, Fixture, cases, judge,
    simulation::simulate,
    wrap::Habit,
    wrong::{Bug, WrongStore},
};
use dlock_core::{Result, Store};

struct Planted(WrongStore);

#[async_trait]
impl Fixture for Planted {
    fn name(&self) -> &str {
        "planted"
    }
    async fn connect(&self) -> Result<Store> {
        Ok(self.0.clone().into_store())
    }
    fn clock(&self) -> Clock {
        Clock::Paused
    }
}

/// Who caught a bug, and what it said.
struct Catch {
    who: String,
    said: String,
}

impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: String = self.said.lines().next().unwrap_or_default().chars().take(80).collect();
        write!(f, "{}: {said}", self.who)
    }
}

/// The first case that fails: on the store as it is, or through the wrappers if none does.
fn caught_by_a_case(bug: Bug) -> Option<Catch> {
    let habits = [None].into_iter().chain(Habit::ALL.into_iter().map(Some));
    let mut trials = habits.flat_map(|habit| cases::all().into_iter().map(move |case| (habit, case)));
    trials.find_map(|(habit, case)| {
        let fixture = Arc::new(Planted(WrongStore::new(bug)));
        let said = quietly(|| judge(fixture, habit, case)).err()?;
        let habit = habit.map_or(String::new(), |habit| format!(" ({habit:?})"));
        Some(Catch { who: format!("{case}{habit}"), said })
    })
}

/// The first seed of the simulation that finds a violation.
fn caught_by_simulation(bug: Bug, seeds: u64) -> Option<Catch> {
    (0..seeds).find_map(|seed| {
        let found = quietly(|| simulate(WrongStore::new(bug).into_store(), seed));
        let said = found.map_or_else(Some, |report| Some(report.violations.first()?.to_string()))?;
        Some(Catch { who: format!("seed {seed}"), said })
    })
}

/// What it panicked with, if it did; nothing is printed meanwhile.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    done.map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// For each bug who caught it.
#[expect(clippy::print_stdout, reason = "libtest shows it with --nocapture")]
fn hunt(catch: impl Fn(Bug) -> Option<Catch>) -> Vec<(Bug, Option<Catch>)> {
    let caught = Bug::ALL.map(|bug| (bug, catch(bug)));
    for (bug, catch) in &caught {
        println!("{bug:?}\n    {}", catch.as_ref().map_or("nobody".to_owned(), ToString::to_string));
    }
    caught.into()
}

#[test]
fn every_planted_bug_is_caught_by_a_case() {
    let caught = hunt(caught_by_a_case);
    let missed: Vec<_> = caught.iter().filter(|(_, catch)| catch.is_none()).map(|(bug, _)| bug).collect();
    assert!(missed.is_empty(), "the cases are blind to {missed:?}");
}

/// The others show only seldom, or in what takes too long.
#[test]
fn the_simulation_catches_most_of_the_planted_bugs() {
    let caught = hunt(|bug| caught_by_simulation(bug, 20));
    let count = caught.iter().filter(|(_, catch)| catch.is_some()).count();
    assert!(count >= 14, "the rules found only {count} of {} bugs", caught.len());
}

#[test]
fn a_store_without_a_planted_bug_is_caught_by_nobody() {
    let caught = caught_by_a_case(Bug::None).or_else(|| caught_by_simulation(Bug::None, 20));
    assert!(caught.is_none(), "{}", caught.map_or_else(String::new, |catch| catch.to_string()));
}
