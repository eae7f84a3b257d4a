//! Planted histories. Each rule is violated by one of them. Others look suspicious and are allowed.

use std::{collections::BTreeSet, time::Duration};

use dlock_core::{Kind, Token};

use super::{
    super::{
        clock::Nanos,
        event::{End, Event, Loss, Queued},
        excerpt,
        faults::FaultKind,
        plan::Name,
        record::{Fault, ProcessId, Record},
    },
    Facts, all,
};
use crate::history::Rule;

const TTL: u64 = 5;
const SLACK: u64 = 10;

/// A record that a test writes by hand, on one lock. Times are in seconds.
struct Story {
    record: Record,
    next: u64,
    end: u64,
}

/// An acquisition of a story.
#[derive(Clone, Copy)]
struct Task {
    process: ProcessId,
    of: u64,
}

fn at(seconds: f64) -> Nanos {
    Duration::from_secs_f64(seconds).as_nanos().try_into().expect("the time fits")
}

impl Story {
    fn new() -> Self {
        Self { record: Record::new(None), next: 0, end: 100 }
    }

    fn requests(&mut self, client: usize, kind: Kind, time: f64, wait: Option<f64>) -> Task {
        let task = Task { process: ProcessId { client, restarts: 0 }, of: self.next };
        self.next += 1;
        let event = Event::Attempt { of: task.of, at: at(time), name: 0, kind, wait: wait.map(at) };
        self.record.event(task.process, event);
        task
    }

    /// Grants the lock with a ttl from the time of the grant.
    fn granted(&mut self, task: Task, time: f64, token: u64) {
        self.granted_in_turn(task, time, token, None);
    }

    /// Grants the lock to a claim that sent its first request at the first time of `queued`, and was
    /// known to wait at the second.
    fn granted_in_turn(&mut self, task: Task, time: f64, token: u64, queued: Option<(f64, Option<f64>)>) {
        let queued =
            queued.map(|(sent, waits)| Queued { sent: at(sent), waits: waits.map(at), gap: at(1.0) });
        let (of, token) = (task.of, Token::new(token));
        let left = at(TTL as f64);
        self.record.event(task.process, Event::Grant { of, at: at(time), token, left, queued });
    }

    /// Requests the lock, which is granted a tenth of a second later.
    fn takes(&mut self, client: usize, kind: Kind, time: f64, token: u64) -> Task {
        let task = self.requests(client, kind, time, None);
        self.granted(task, time + 0.1, token);
        task
    }

    fn checks(&mut self, task: Task, time: f64, until: f64, left: Option<f64>) {
        let (of, held, left) = (task.of, left.is_some(), at(left.unwrap_or_default()));
        self.record.event(task.process, Event::Check { of, at: at(time), until: at(until), held, left });
    }

    fn releases(&mut self, task: Task, time: f64) {
        self.record.event(task.process, Event::Release { of: task.of, at: at(time), dropped: false });
        self.record.event(task.process, Event::Released { of: task.of, at: at(time + 0.1) });
    }

    fn loses(&mut self, task: Task, time: f64) {
        let event = Event::Lost { of: task.of, at: at(time), reason: Loss::Expired };
        self.record.event(task.process, event);
    }

    fn ends(&mut self, task: Task, time: f64, how: End) {
        self.record.event(task.process, Event::Ended { of: task.of, at: at(time), how, queued: None });
    }

    fn fault(&mut self, kind: FaultKind, client: usize, from: f64, until: f64) {
        let fault =
            Fault { kind, client: Some(client), from: at(from), until: at(until), what: String::new() };
        self.record.fault(fault).expect("there is no log");
    }

    fn facts(&self) -> Facts {
        Facts {
            names: vec![Name { name: "x".to_owned(), kinds: Kind::ALL.to_vec() }],
            ttl: Duration::from_secs(TTL),
            memory: Duration::from_secs(TTL),
            slack: Duration::from_secs(SLACK),
            start: 0,
            end: at(self.end as f64),
        }
    }

    fn rules(&self) -> BTreeSet<Rule> {
        all(&self.record, &self.facts()).into_iter().map(|violation| violation.rule).collect()
    }

    #[track_caller]
    fn violates(&self, rule: Rule) {
        let rules = self.rules();
        assert!(rules.contains(&rule), "expected `{rule}`, found {rules:?}");
    }

    #[track_caller]
    fn is_allowed(&self) {
        let violations = all(&self.record, &self.facts());
        assert!(violations.is_empty(), "false alarm: {violations:?}");
    }
}

#[test]
fn holds_that_follow_each_other_are_allowed() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.checks(first, 2.0, 2.0, Some(4.0));
    story.releases(first, 3.0);
    let second = story.takes(1, Kind::Mutex, 3.05, 2);
    story.releases(second, 4.0);
    story.is_allowed();
}

#[test]
fn a_grant_while_another_guard_is_held_is_an_overlap() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    let second = story.takes(1, Kind::Mutex, 2.0, 2);
    story.checks(first, 2.5, 2.5, Some(4.0));
    story.releases(second, 3.0);
    story.releases(first, 4.0);
    story.violates(Rule::Exclusive);
}

#[test]
fn a_paused_holder_whose_deadline_has_passed_is_no_overlap() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    // The query began before the pause and was answered after it.
    story.checks(first, 2.0, 12.0, Some(4.1));
    story.fault(FaultKind::Pause, 0, 2.0, 12.0);
    let second = story.takes(1, Kind::Mutex, 6.5, 2);
    story.releases(second, 8.0);
    story.checks(first, 12.1, 12.1, None);
    story.loses(first, 12.1);
    story.is_allowed();
}

#[test]
fn a_grant_whose_reply_was_read_after_a_pause_is_no_overlap() {
    let mut story = Story::new();
    let first = story.requests(0, Kind::Mutex, 1.0, None);
    story.fault(FaultKind::Pause, 0, 1.05, 12.0);
    let second = story.takes(1, Kind::Mutex, 11.0, 2);
    // The guard is lost when the task gets it.
    story.record.event(
        first.process,
        Event::Grant { of: first.of, at: at(12.0), token: Token::new(1), left: 0, queued: None },
    );
    story.loses(first, 12.1);
    story.releases(second, 13.0);
    story.is_allowed();
}

#[test]
fn a_grant_before_the_deadline_of_a_paused_holder_is_an_overlap() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.fault(FaultKind::Pause, 0, 2.0, 12.0);
    let second = story.takes(1, Kind::Mutex, 4.0, 2);
    story.releases(second, 4.5);
    story.checks(first, 12.1, 12.1, None);
    story.loses(first, 12.1);
    story.violates(Rule::Exclusive);
}

#[test]
fn the_lock_of_a_killed_process_may_be_granted() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.fault(FaultKind::Kill, 0, 2.0, 3.0);
    story.record.killed(first.process, at(2.0));
    let second = story.takes(1, Kind::Mutex, 2.5, 2);
    story.releases(second, 3.0);
    story.is_allowed();
}

#[test]
fn readers_share_and_permits_share_up_to_their_limit() {
    for (kind, count) in [(Kind::Read, 5), (Kind::Permit, 3)] {
        let mut story = Story::new();
        let tasks: Vec<_> =
            (0..count).map(|client| story.takes(client, kind, 1.0, client as u64 + 1)).collect();
        tasks.into_iter().for_each(|task| story.releases(task, 2.0));
        story.is_allowed();
    }
}

#[test]
fn a_permit_above_the_limit_is_found() {
    let mut story = Story::new();
    let tasks: Vec<_> = (0..4)
        .map(|client| story.takes(client, Kind::Permit, 1.0 + client as f64 / 10.0, client as u64 + 1))
        .collect();
    tasks.into_iter().for_each(|task| story.releases(task, 3.0));
    story.violates(Rule::Limit);
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    for token in [7, 6] {
        let mut story = Story::new();
        let first = story.takes(0, Kind::Mutex, 1.0, 7);
        story.releases(first, 2.0);
        let second = story.takes(1, Kind::Mutex, 3.0, token);
        story.releases(second, 4.0);
        story.violates(Rule::TokenOrder);
    }
}

#[test]
fn a_loss_before_the_promised_deadline_is_found() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.loses(first, 3.0);
    story.violates(Rule::FalseAlarm);
}

#[test]
fn a_guard_that_is_held_again_after_its_loss_is_found() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.loses(first, 7.0);
    story.checks(first, 7.1, 7.1, Some(1.0));
    story.violates(Rule::LostForGood);
}

/// Two fair waiters. The second one sends its first request after the store has replied "busy" to
/// the first one, and is granted first.
fn overtaken(kind: Kind) -> (Story, Task) {
    let mut story = Story::new();
    let holder = story.takes(2, Kind::Fair, 0.1, 1);
    let waiter = story.requests(0, Kind::Fair, 1.0, None);
    let later = story.requests(1, kind, 2.0, None);
    story.releases(holder, 3.0);
    story.granted_in_turn(later, 3.1, 3, Some((2.0, Some(2.1))));
    story.releases(later, 3.2);
    story.granted_in_turn(waiter, 3.3, 4, Some((1.0, Some(1.1))));
    story.releases(waiter, 3.4);
    (story, waiter)
}

#[test]
fn a_fair_waiter_that_is_overtaken_is_found() {
    overtaken(Kind::Fair).0.violates(Rule::Order);
}

#[test]
fn a_mutex_may_overtake_because_its_order_is_the_stores_choice() {
    overtaken(Kind::Mutex).0.is_allowed();
}

#[test]
fn a_waiter_whose_client_had_a_fault_may_have_lost_its_place() {
    let (mut story, waiter) = overtaken(Kind::Fair);
    story.fault(FaultKind::Cut, waiter.process.client, 1.5, 2.5);
    story.is_allowed();
}

#[test]
fn requests_whose_order_of_arrival_is_unknown_may_be_granted_in_any_order() {
    let mut story = Story::new();
    let holder = story.takes(2, Kind::Fair, 0.1, 1);
    let first = story.requests(0, Kind::Fair, 1.0, None);
    let second = story.requests(1, Kind::Fair, 1.0, None);
    story.releases(holder, 3.0);
    // The second request was sent before the reply to the first one arrived.
    story.granted_in_turn(second, 3.1, 3, Some((1.05, Some(1.2))));
    story.releases(second, 3.2);
    story.granted_in_turn(first, 3.3, 4, Some((1.0, Some(1.1))));
    story.releases(first, 3.4);
    story.is_allowed();
}

#[test]
fn a_wait_beyond_its_limit_is_found_unless_the_process_was_stopped() {
    let late = |stopped: Option<(f64, f64)>| {
        let mut story = Story::new();
        let holder = story.takes(1, Kind::Mutex, 0.1, 1);
        let waiter = story.requests(0, Kind::Mutex, 1.0, Some(2.0));
        for second in 1..20 {
            story.checks(holder, f64::from(second), f64::from(second), Some(4.9));
        }
        if let Some((from, until)) = stopped {
            story.fault(FaultKind::Pause, 0, from, until);
        }
        story.ends(waiter, 14.0, End::TimedOut);
        story.releases(holder, 20.0);
        story
    };
    late(None).violates(Rule::Progress);
    late(Some((2.0, 4.0))).is_allowed();
}

#[test]
fn a_free_lock_that_is_not_granted_is_found() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.releases(first, 2.0);
    let waiter = story.requests(1, Kind::Mutex, 3.0, None);
    story.granted_in_turn(waiter, 14.0, 2, Some((3.0, Some(3.1))));
    story.releases(waiter, 15.0);
    story.violates(Rule::Progress);
}

#[test]
fn a_waiter_that_times_out_beside_a_free_lock_is_found() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.releases(first, 2.0);
    let waiter = story.requests(1, Kind::Mutex, 3.0, Some(12.0));
    let queued = Some(Queued { sent: at(3.0), waits: Some(at(3.1)), gap: 0 });
    let (of, how) = (waiter.of, End::TimedOut);
    story.record.event(waiter.process, Event::Ended { of, at: at(15.0), how, queued });
    story.violates(Rule::Progress);
}

#[test]
fn a_client_whose_requests_are_delayed_inside_of_it_may_be_late_for_a_free_lock() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.releases(first, 2.0);
    let waiter = story.requests(1, Kind::Mutex, 3.0, None);
    story.granted_in_turn(waiter, 16.0, 2, Some((6.0, Some(6.1))));
    story.releases(waiter, 17.0);
    // The bound is the slack and the delay of three seconds.
    story.is_allowed();
}

#[test]
fn a_task_that_waits_inside_of_a_busy_client_has_not_waited_for_the_store() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.releases(first, 2.0);
    let waiter = story.requests(1, Kind::Mutex, 3.0, None);
    story.granted_in_turn(waiter, 14.0, 2, Some((13.9, None)));
    story.releases(waiter, 15.0);
    story.is_allowed();
}

#[test]
fn a_lock_that_a_dead_process_may_hold_is_not_free() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.fault(FaultKind::Kill, 0, 2.0, 3.0);
    story.record.killed(first.process, at(2.0));
    let waiter = story.requests(1, Kind::Mutex, 3.0, None);
    // The memory of the store ends at 8 s, and the slack at 18 s.
    story.granted_in_turn(waiter, 17.0, 2, Some((3.0, Some(3.1))));
    story.releases(waiter, 17.5);
    story.is_allowed();
}

#[test]
fn a_wait_for_a_lock_that_is_held_may_be_long() {
    let mut story = Story::new();
    let holder = story.takes(0, Kind::Mutex, 1.0, 1);
    let waiter = story.requests(1, Kind::Mutex, 2.0, None);
    for second in 2..40 {
        story.checks(holder, f64::from(second), f64::from(second), Some(4.9));
    }
    story.releases(holder, 40.0);
    story.granted_in_turn(waiter, 40.2, 2, Some((2.0, Some(2.1))));
    story.releases(waiter, 41.0);
    story.is_allowed();
}

#[test]
fn a_request_that_is_refused_for_good_is_found() {
    let mut story = Story::new();
    let first = story.takes(0, Kind::Mutex, 1.0, 1);
    story.releases(first, 2.0);
    let refused = story.requests(1, Kind::Mutex, 3.0, None);
    story.ends(refused, 3.1, End::Refused("no rights".to_owned()));
    story.violates(Rule::Refusal);
}

#[test]
fn a_run_without_a_grant_proves_nothing() {
    Story::new().violates(Rule::Potency);
}

#[test]
fn an_excerpt_has_the_events_of_the_violation_and_no_others() {
    let mut story = Story::new();
    let other = story.takes(3, Kind::Mutex, 0.1, 1);
    story.releases(other, 0.5);
    let first = story.takes(0, Kind::Mutex, 1.0, 2);
    story.fault(FaultKind::Pause, 0, 2.0, 12.0);
    story.fault(FaultKind::Pause, 2, 2.0, 12.0);
    let second = story.takes(1, Kind::Mutex, 4.0, 3);
    story.releases(second, 4.5);
    story.loses(first, 12.1);
    let facts = story.facts();
    let violations = all(&story.record, &facts);
    let rules = excerpt::by_rule(&violations, &story.record);
    let lines = excerpt::of(rules[&Rule::Exclusive][0], &story.record, &facts.names, 0).join("\n");
    for expected in
        ["4.100000 s  client 1.0 #2 is granted with token 3", "client 0 pause begins", "is lost: Expired"]
    {
        assert!(lines.contains(expected), "`{expected}` is not in:\n{lines}");
    }
    for unexpected in ["client 3.0", "client 2 pause"] {
        assert!(!lines.contains(unexpected), "`{unexpected}` is in:\n{lines}");
    }
}
