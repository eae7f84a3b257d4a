//! Tests of the suite: its cases and its simulation must detect the bug of each store.

use std::{
    any::Any,
    cell::Cell,
    fmt,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{Arc, Once},
    thread,
};

use async_trait::async_trait;
use dlock_conformance::{
    Clock, Fixture, Kill, Row, cases::Case, judge, simulation::simulate, table, wrap::Habit,
};
use dlock_core::{Result, driver::Store};
use dlock_planted::{Bug, BuggyStore};

/// A store with a bug.
struct Planted(BuggyStore);

#[async_trait]
impl Fixture for Planted {
    fn name(&self) -> &str {
        "planted"
    }
    async fn connect(&self) -> Result<Store> {
        Ok(self.0.clone().into_store())
    }
    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        Some(Ok(self.0.clone().into_killable_store()))
    }
    fn clock(&self) -> Clock {
        Clock::Paused
    }
}

fn planted(bug: Bug) -> impl Fixture {
    Planted(BuggyStore::new(bug))
}

/// The detection of a bug.
struct Catch {
    /// The failed case, or the seed of the simulation.
    detector: String,
    message: String,
}

impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message: String = self.message.lines().next().unwrap_or_default().chars().take(80).collect();
        write!(f, "{}: {message}", self.detector)
    }
}

/// Runs a case on a store with this bug. Returns the message of its failure.
fn failure_of(bug: Bug, row: Row, case: Case) -> Option<String> {
    let fixture = Arc::new(planted(bug));
    quietly(|| judge(fixture, row, case)).unwrap_or_else(Err).err()
}

/// Returns the first case that fails. The cases run on the plain store first, and then through the
/// wrappers.
fn caught_by_a_case(bug: Bug) -> Option<Catch> {
    let mut table = table(&planted(Bug::None)).into_iter();
    table.find_map(|(row, case)| {
        let message = failure_of(bug, row, case)?;
        Some(Catch { detector: format!("{row}::{case}"), message })
    })
}

/// Returns the first seed with which the simulation finds a violation.
fn caught_by_simulation(bug: Bug, seeds: u64) -> Option<Catch> {
    (0..seeds).find_map(|seed| {
        let result = quietly(|| simulate(BuggyStore::new(bug).into_store(), seed));
        let message = result.map_or_else(Some, |report| Some(report.violations.first()?.to_string()))?;
        Some(Catch { detector: format!("seed {seed}"), message })
    })
}

/// Runs `work`, and returns the message of its panic as an error. Suppresses the output of panics
/// of this thread and of the threads of cases.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_case = thread::current().name().is_some_and(|name| name.contains("::"));
            if !QUIET.get() && !is_case {
                default_hook(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.map_err(|panic| message_of(&*panic))
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns each bug with its detection, and prints them.
#[expect(clippy::print_stdout, reason = "libtest shows it with --nocapture")]
fn hunt(catch: impl Fn(Bug) -> Option<Catch>) -> Vec<(Bug, Option<Catch>)> {
    // Only the binary `leaks` counts bytes, so only that one can detect a leak.
    let bugs = Bug::ALL.into_iter().filter(|bug| *bug != Bug::BellsAreKept);
    let caught: Vec<_> = bugs.map(|bug| (bug, catch(bug))).collect();
    for (bug, catch) in &caught {
        println!("{bug:?}\n    {}", catch.as_ref().map_or("not caught".to_owned(), ToString::to_string));
    }
    caught
}

#[test]
fn every_planted_bug_is_caught_by_a_case() {
    let caught = hunt(caught_by_a_case);
    let missed: Vec<_> = caught.iter().filter(|(_, catch)| catch.is_none()).map(|(bug, _)| bug).collect();
    assert!(missed.is_empty(), "no case catches {missed:?}");
}

/// The other bugs need more than twenty seeds, or steps that take too long for the simulation.
#[test]
fn the_simulation_catches_most_of_the_planted_bugs() {
    let caught = hunt(|bug| caught_by_simulation(bug, 20));
    let count = caught.iter().filter(|(_, catch)| catch.is_some()).count();
    assert!(count >= 14, "the simulation caught only {count} of {} bugs", caught.len());
}

#[test]
fn a_store_without_a_planted_bug_passes() {
    let caught = caught_by_a_case(Bug::None).or_else(|| caught_by_simulation(Bug::None, 20));
    assert!(caught.is_none(), "{}", caught.map_or_else(String::new, |catch| catch.to_string()));
}

/// Drivers have had these bugs, which the suite did not detect. Now each bug has a case whose
/// message names it.
#[test]
fn a_bug_that_drivers_had_is_named_by_its_case() {
    let case_name = "a_forced_release_is_reported_to_a_downgraded_holder_as_soon_as_to_any_other";
    for (bug, case, text) in [
        (
            Bug::NoRowLock,
            "mutex::of_many_racing_for_a_name_never_used_one_gets_it".to_owned(),
            "several holders at once",
        ),
        (
            Bug::NoRowLock,
            "fair::of_many_racing_for_a_name_never_used_one_gets_it".to_owned(),
            "several holders at once",
        ),
        (
            Bug::NoTokenFloor,
            "client::the_first_token_of_a_name_is_not_below_the_clock".to_owned(),
            "the first token is 1,",
        ),
        (
            Bug::IdentityPerClient,
            "client::two_clients_of_one_store_have_one_identity".to_owned(),
            "two identities",
        ),
        (
            Bug::PermitWakesAll,
            "semaphore::a_permit_given_back_wakes_no_more_waiters_than_may_hold".to_owned(),
            "were woken by one release",
        ),
        (
            Bug::PermitSeesOwnLimitOnly,
            "semaphore::a_wider_limit_does_not_exceed_a_narrower_one".to_owned(),
            "beside four that know of four",
        ),
        (
            Bug::DeadPermitLost,
            "semaphore_stress::a_holder_that_dies_gives_its_permit_back".to_owned(),
            "is lost with its holder",
        ),
        (
            Bug::DetachedDiesWithItsClient,
            "detached::it_stays_for_its_time_after_its_client_is_killed".to_owned(),
            "was free",
        ),
        (
            Bug::DetachedDiesWithItsClient,
            "detached_read::it_stays_for_its_time_after_its_client_is_closed".to_owned(),
            "was free",
        ),
        (
            Bug::DetachedNeverExpires,
            "detached_permit::it_stays_for_its_time_without_renewals".to_owned(),
            "the detached hold never ends",
        ),
        (
            Bug::DetachmentCreates,
            "detached_write::a_force_released_hold_cannot_be_detached".to_owned(),
            "the lock was taken from it",
        ),
        (
            Bug::TicketReleaseRemovesTheNext,
            "ticket_fair::it_is_worth_nothing_when_its_time_is_over".to_owned(),
            "a stale guard",
        ),
        (
            Bug::TicketReleaseWakesNoWaiter,
            "ticket::it_releases_the_lock_and_wakes_the_next".to_owned(),
            "the release wakes no waiter",
        ),
        (
            Bug::RenewalShortens,
            "handover::a_renewal_never_shortens_a_hold".to_owned(),
            "a renewal with a shorter ttl shortened the hold",
        ),
        (
            Bug::DetachedKeepsItsId,
            "handover_permit::a_detached_hold_is_known_by_its_ticket_only".to_owned(),
            "still known by its former id",
        ),
        (
            Bug::TicketWorksTwice,
            "handover_read::of_two_takers_of_a_ticket_one_gets_the_hold".to_owned(),
            "two clients took over one hold",
        ),
        (
            Bug::LostKeepsTheTicket,
            "handover::a_claim_that_found_no_hold_to_hand_back_does_not_release_the_ticket".to_owned(),
            "a claim without a hold has released the ticket",
        ),
        (
            Bug::HandingBackReleases,
            "ticket::a_use_that_is_given_up_leaves_the_hold_to_the_ticket".to_owned(),
            "free after cut",
        ),
        (
            Bug::HandingBackReleases,
            "handover_fair::a_hold_that_was_taken_over_is_handed_back_to_its_ticket".to_owned(),
            "handing a hold back to its ticket released it",
        ),
        (
            Bug::WaiterIsTakenOver,
            "handover_write::a_waiting_claim_is_not_taken_over".to_owned(),
            "a claim that only waits was taken over",
        ),
        (
            Bug::ResumedKeepsItsTime,
            "ticket_permit::a_resumed_hold_dies_with_its_client".to_owned(),
            "the detached time continues",
        ),
        (
            Bug::MarginAdded,
            "margin::no_client_is_granted_within_the_margin_of_a_holder_that_is_cut_off".to_owned(),
            "two claims hold the lock",
        ),
        (
            Bug::ExpiryEarly,
            "margin::an_expired_hold_stays_taken_until_its_guard_is_dropped".to_owned(),
            "was free while the work was being stopped",
        ),
        (
            Bug::RenewalBehindAttempts,
            "crowd::waiters_of_a_name_each_cost_their_client_no_lock_when_the_server_is_silent".to_owned(),
            "the renewals were starved",
        ),
        (
            Bug::MarkAfterFailedRun,
            "once::work_that_fails_leaves_no_mark".to_owned(),
            "a failed run left a mark",
        ),
        (
            Bug::ReleaseWithoutOwnerCheck,
            "endurance::faults_that_are_shorter_than_the_ttl_cost_tasks_of_one_client_no_lock".to_owned(),
            "violations, the first:",
        ),
        (
            Bug::StaleFlag,
            "election::no_candidate_is_elected_while_another_term_is_current".to_owned(),
            "two terms are current",
        ),
        (
            Bug::RenewalGivesWay,
            "election::the_claim_is_released_after_the_work_has_ended".to_owned(),
            "released while the work was running",
        ),
        (
            Bug::InspectionShowsTheDead,
            "observer::it_reports_a_dead_leader_as_vacant_when_its_claim_has_ended".to_owned(),
            "the observer reports a dead leader",
        ),
        (
            Bug::ReleaseWakesAll,
            "election::a_resignation_among_a_hundred_candidates_costs_the_requests_of_one_hand_over"
                .to_owned(),
            "among 100 candidates has caused",
        ),
        (
            Bug::InspectedTokenDecreases,
            "observer::it_reports_terms_that_never_decrease".to_owned(),
            "the observer reports Unknown",
        ),
        (Bug::DowngradeLosesHints, format!("downgrade_mutex::{case_name}"), "it is deaf"),
        (Bug::DowngradeLosesHints, format!("downgrade_fair::{case_name}"), "it is deaf"),
        (Bug::DowngradeLosesHints, format!("downgrade_write::{case_name}"), "it is deaf"),
    ] {
        let table = table(&planted(bug));
        let (row, found) =
            table.into_iter().find(|(_, found)| found.to_string() == case).expect("the case is in the table");
        let message =
            failure_of(bug, row, found).unwrap_or_else(|| panic!("{case} passes on a store with {bug:?}"));
        assert!(message.contains(text), "the message of {case} does not name {bug:?}: {message}");
    }
}

/// A composite store that is correct while no member misbehaves.
struct Composite;

#[async_trait]
impl Fixture for Composite {
    fn name(&self) -> &str {
        "composite"
    }
    async fn connect(&self) -> Result<Store> {
        Ok(BuggyStore::new(Bug::None).into_store())
    }
    async fn connect_with_member(&self, _: Habit) -> Option<Result<Store>> {
        Some(Ok(BuggyStore::new(Bug::ReleaseHidesLoss).into_store()))
    }
    fn clock(&self) -> Clock {
        Clock::Paused
    }
}

#[test]
fn a_composite_that_fails_only_with_a_bad_member_is_caught() {
    let cases_in = |row: Row| table(&Composite).into_iter().filter(move |(found, _)| *found == row);
    let fails = |(row, case)| quietly(|| judge(Arc::new(Composite), row, case)).unwrap_or_else(Err).is_err();
    for habit in Habit::ALL {
        let is_chosen = |(_, case): &(Row, Case)| case.to_string() == "mutex::a_free_lock_is_granted";
        assert!(
            cases_in(Row::Member(habit)).any(|row| is_chosen(&row)),
            "no case runs with a {habit} member"
        );
    }
    let reports_loss = |(_, case): &(Row, Case)| {
        case.to_string() == "loss::the_release_of_a_lock_that_was_taken_reports_the_loss"
    };
    assert!(
        cases_in(Row::Member(Habit::Slow)).filter(reports_loss).any(fails),
        "no case fails, although a member misbehaves"
    );
}
