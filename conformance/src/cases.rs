//! The table of cases: each a sentence that can be false, in the file of its topic.
//! Over the usual length: one table.

mod cancel;
mod client;
mod close;
mod downgrade;
mod exclusive;
mod fair;
mod hold;
mod kinds;
mod line;
mod look;
mod loss;
mod name;
mod newcomer;
mod option;
mod outage;
mod owner;
mod race;
mod restart;
mod rwlock;
mod stress;
mod token;

use std::{fmt, pin::Pin, sync::Arc};

use dlock_core::{Kind, driver::Info};

use crate::{Arena, Fixture, Row, runner::told, wrap::Habit};

/// One case: a behaviour, and what a store must have for it.
#[derive(Clone, Copy)]
pub struct Case {
    topic: &'static str,
    name: &'static str,
    kind: Kind,
    needs: &'static [Need],
    run: fn(Arc<Arena>) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store must have for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Kind(Kind),
    Tokens,
    /// Tokens that grow when the store lost its data, too.
    TokenFloor,
    /// That the kind of the case can be turned into a read hold.
    Downgrade,
    Inspect,
    /// That allocated bytes are counted.
    Allocated,
    /// That claims live as long as their client's session.
    Session,
    /// That a proxy can stand before the server.
    Network,
    /// That the server can be restarted.
    Restart,
}

/// What a store can do.
pub(crate) struct Able {
    info: Info,
    inspects: bool,
    has_members: bool,
    tokens_outlive_data: bool,
    counts_bytes: bool,
    has_network: bool,
    restarts: bool,
}

impl Able {
    /// Asks a client of the store.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) async fn of(fixture: &dyn Fixture) -> Self {
        let connected = fixture.connect().await;
        let store = connected
            .unwrap_or_else(|error| panic!("no client of {} can connect: {}", fixture.name(), told(&error)));
        let has_members = fixture.connect_with_member(Habit::Deaf).await.is_some();
        Self {
            info: store.backend.info().clone(),
            inspects: store.inspect.is_some(),
            has_members,
            tokens_outlive_data: fixture.tokens_outlive_data(),
            counts_bytes: fixture.allocated().is_some(),
            has_network: fixture.network().is_some(),
            restarts: fixture.network().is_some_and(|network| network.restart().is_some()),
        }
    }

    /// Whether the cases are to run in this row.
    pub(crate) fn has_row(&self, row: Row) -> bool {
        self.has_members || !matches!(row, Row::Member(_))
    }
}

impl Case {
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) async fn run(&self, arena: Arc<Arena>) {
        (self.run)(arena).await;
    }

    /// Whether other cases of the process must not run meanwhile.
    pub(crate) fn runs_alone(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Allocated | Need::Restart))
    }

    /// Whether the case is in this row: not where another would only repeat it, because the case itself does what the rows
    /// do, or looks at something that they do not change.
    pub(crate) fn is_in(&self, row: Row) -> bool {
        let only_plain = [Need::Allocated, Need::Network, Need::Restart];
        row == Row::Plain || !self.needs.iter().any(|need| only_plain.contains(need))
    }

    /// What is lacking for it.
    pub(crate) fn missing(&self, able: &Able) -> Option<String> {
        let Able { info, inspects, .. } = able;
        let has = |kind| info.kinds.contains(&kind);
        if !has(self.kind) {
            return Some(format!("the store has no {}", self.kind));
        }
        self.needs.iter().find_map(|need| match need {
            Need::Kind(kind) if !has(*kind) => Some(format!("the store has no {kind}")),
            Need::Tokens if !info.tokens => Some("the store has no tokens".to_owned()),
            Need::TokenFloor if !able.tokens_outlive_data => {
                Some("the store's tokens begin anew when it lost its data".to_owned())
            }
            Need::Downgrade if !info.downgrades.contains(&self.kind) => {
                Some(format!("the store cannot downgrade a {}", self.kind))
            }
            Need::Inspect if !inspects => Some("the store cannot be looked into".to_owned()),
            Need::Allocated if !able.counts_bytes => Some("the fixture does not count bytes".to_owned()),
            Need::Session if info.session.is_none() => Some("the store has no sessions".to_owned()),
            Need::Restart if !able.restarts => Some("the fixture cannot restart the server".to_owned()),
            Need::Network if !able.has_network => Some("the fixture has no one server".to_owned()),
            _ => None,
        })
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({self})")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.topic, self.name)
    }
}

/// Rows of the table: `file "topic" (kind of the locks) needs { cases }`; a case is the function of its name in `file`.
macro_rules! table {
    ($($file:ident $topic:literal ($kind:ident) $needs:tt { $($case:ident),+ $(,)? })+) => {
        [$(table!(@topic $file $topic $kind $needs $($case)+)),+].concat()
    };
    (@topic $file:ident $topic:literal $kind:ident $needs:tt $($case:ident)+) => {
        vec![$(Case {
            topic: $topic,
            name: stringify!($case),
            kind: Kind::$kind,
            needs: &$needs,
            run: |arena| Box::pin($file::$case(arena)),
        }),+]
    };
}

/// The rows that hold for every exclusive kind.
macro_rules! exclusive {
    ($topic:literal, $kind:ident) => {
        table! {
            exclusive $topic ($kind) [] {
                a_free_lock_is_granted,
                a_try_of_a_free_lock_succeeds,
                a_second_contender_waits_until_the_release,
                a_try_of_a_held_lock_is_busy,
                of_many_tries_at_once_at_most_one_succeeds,
                a_released_lock_is_free_for_others_at_once,
                a_released_lock_is_free_for_the_same_client_at_once,
                many_rounds_leave_nothing_behind,
                a_bounded_wait_succeeds_when_the_lock_is_freed_in_time,
                a_wait_that_runs_out_is_a_timeout_that_says_so,
                a_wait_of_zero_is_one_try,
                a_waiter_that_gave_up_takes_no_later_turn,
                a_hold_and_a_wait_outlast_the_ttl,
                default_options_protect_long_work,
                a_dropped_guard_lets_the_next_one_in,
                a_guard_dropped_outside_a_runtime_lets_the_next_one_in,
                a_guard_dropped_in_a_panic_lets_the_next_one_in,
                a_release_wakes_a_waiter_long_before_the_ttl_ends,
                a_release_wakes_a_waiter_of_the_same_client,
                handles_of_one_client_exclude_each_other,
                without_an_owner_nobody_re_enters,
                locks_of_two_names_do_not_disturb_each_other,
                a_lock_passes_through_a_chain_of_waiters,
                every_waiter_of_one_client_is_granted_once,
            }
            stress $topic ($kind) [] {
                no_update_is_lost,
                no_update_is_lost_among_waits_cut_short,
                a_storm_of_dropped_waits_leaves_the_lock_free,
                many_names_are_held_at_the_same_time,
            }
            race $topic ($kind) [] { of_many_racing_for_a_name_never_used_one_gets_it }
        }
    };
}

/// The rows about going away at any point, for every kind.
macro_rules! cancelled {
    ($topic:literal, $kind:ident, $needs:tt) => {
        table! {
            cancel $topic ($kind) $needs {
                an_acquire_of_a_free_lock_leaves_nothing_wherever_it_is_dropped,
                an_acquire_of_a_held_lock_leaves_nothing_wherever_it_is_dropped,
                a_try_leaves_nothing_wherever_it_is_dropped,
                a_release_that_is_dropped_still_releases,
                a_waiter_that_is_dropped_when_woken_passes_the_turn_on,
            }
        }
    };
}

/// The rows about turning an exclusive hold into a read hold, for every kind that a store may downgrade.
macro_rules! downgraded {
    ($topic:literal, $kind:ident) => {
        table! {
            downgrade $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade] {
                a_downgrade_lets_readers_in_and_keeps_others_out,
                a_downgrade_wakes_all_readers_behind,
                the_release_of_a_downgraded_hold_wakes_who_waits,
                a_downgraded_hold_outlasts_the_ttl,
            }
            downgrade $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Tokens] {
                a_downgrade_keeps_the_token,
            }
            downgrade $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade, Need::Inspect] {
                a_downgraded_holder_is_told_of_a_theft_as_soon_as_any_other,
            }
            stress $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade] {
                nobody_writes_between_a_write_and_its_downgrade,
            }
            cancel $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade] {
                a_downgrade_that_is_dropped_releases,
            }
            owner $topic ($kind) [Need::Kind(Kind::Read), Need::Downgrade] {
                when_an_owner_holds_only_to_read_others_may_read,
                of_an_owners_two_guards_a_downgraded_one_lets_no_reader_in,
                of_an_owners_two_guards_a_dropped_one_lets_no_reader_in,
            }
        }
    };
}

/// All that is about downgrades.
fn downgrades() -> Vec<Case> {
    let of_each_kind = [
        downgraded!("downgrade_mutex", Mutex),
        downgraded!("downgrade_fair", Fair),
        downgraded!("downgrade_write", Write),
    ];
    // Who waits for a mutex has no place in an order.
    let in_order = table! {
        downgrade "downgrade_fair" (Fair) [Need::Kind(Kind::Read), Need::Downgrade] {
            a_downgrade_passes_nobody_who_waits,
        }
        downgrade "downgrade_write" (Write) [Need::Kind(Kind::Read), Need::Downgrade] {
            a_downgrade_passes_nobody_who_waits,
        }
    };
    [of_each_kind.concat(), in_order].concat()
}

/// The life of a hold, from the options to the loss, whatever the kind.
fn lives() -> Vec<Case> {
    let cancelled = [
        cancelled!("cancel", Mutex, []),
        cancelled!("cancel_fair", Fair, []),
        cancelled!("cancel_write", Write, []),
        cancelled!("cancel_read", Read, [Need::Kind(Kind::Write)]),
    ];
    let others = table! {
        cancel "cancel" (Mutex) [] {
            an_acquire_that_is_never_polled_does_nothing,
            another_arm_of_a_select_ends_the_wait,
            a_task_that_is_aborted_leaves_nothing,
            a_grant_that_nobody_takes_any_more_is_released,
            a_try_whose_answer_is_lost_leaves_nothing,
            an_acquire_whose_answers_are_all_lost_leaves_nothing,
            a_release_whose_answers_are_lost_still_releases,
            a_refused_try_leaves_nothing,
        }
        hold "hold" (Mutex) [] {
            two_holds_are_renewed_each_for_itself,
            what_remains_is_never_more_than_the_ttl,
            renewing_at_half_the_ttl_keeps_a_lock,
            the_store_keeps_no_claim_longer_than_was_asked,
            a_lease_ends_by_itself,
            a_lease_lets_the_next_one_in_no_earlier_than_its_guard_says,
            a_lease_that_is_released_before_its_end_is_never_lost,
            run_releases_when_its_work_panics,
            run_drops_its_work_when_the_lock_is_lost,
            lock_within_gives_up_when_its_time_is_over,
            the_time_that_an_answer_took_is_not_time_held,
            a_grant_that_comes_after_its_ttl_is_never_held,
            a_waiter_whose_grant_comes_too_late_asks_again,
        }
        loss "loss" (Mutex) [] {
            a_holder_that_is_cut_off_is_told_when_its_ttl_is_over,
            a_token_of_the_loss_is_cancelled_by_it,
            everybody_who_waits_for_the_loss_is_told,
            nobody_gets_in_before_the_holder_that_is_cut_off_is_lost,
            nobody_gets_in_before_a_holder_is_lost_that_hears_no_answers,
            a_holder_that_is_cut_off_for_less_than_its_ttl_keeps_its_lock,
            a_renewal_whose_answer_is_lost_is_no_loss,
            a_frozen_holder_sees_its_loss_at_its_first_step,
            what_is_lost_stays_lost,
            a_lost_lock_is_free_when_its_holder_is_back,
            a_renewal_that_comes_too_late_does_not_disturb_the_next_holder,
            releasing_what_is_lost_is_an_error,
            neither_a_release_nor_a_drop_is_a_loss,
            a_crashed_holder_frees_its_lock_within_its_ttl_or_session,
            a_crashed_waiter_lets_others_pass_within_its_ttl_or_session,
        }
        loss "loss" (Mutex) [Need::Session] { a_client_whose_session_ends_holds_nothing_any_more }
        loss "loss" (Mutex) [Need::Inspect] {
            whoever_is_robbed_is_told,
            whoever_releases_what_was_taken_is_told,
            a_stale_release_does_not_disturb_the_next_holder,
            a_stale_drop_does_not_disturb_the_next_holder,
        }
        newcomer "newcomer" (Mutex) [] { a_try_gets_a_lock_whose_holder_died_unnoticed }
        newcomer "newcomer" (Mutex) [Need::Tokens] {
            a_newcomers_token_is_greater_than_that_of_a_holder_that_died,
        }
        outage "outage" (Mutex) [] {
            a_bounded_wait_for_a_dead_store_ends_in_time_and_says_why,
            an_unbounded_wait_for_a_dead_store_is_an_error,
            a_waiter_whose_store_dies_is_told,
            a_try_of_a_dead_store_is_an_error,
            a_release_to_a_dead_store_ends_when_the_hold_would,
            a_blip_of_the_store_is_not_noticed_by_a_waiter,
        }
        line "line" (Mutex) [Need::Network] {
            every_call_to_a_silent_server_ends_within_its_bound,
            connecting_to_a_silent_server_ends_with_an_error,
            a_holder_whose_connection_breaks_keeps_its_lock,
            a_line_that_was_silent_for_a_while_costs_no_lock,
            nobody_gets_in_before_the_holder_on_a_silent_line_is_lost,
            an_answer_that_comes_late_answers_no_later_call,
            a_request_that_arrives_late_keeps_others_out_for_no_longer_than_its_ttl,
            a_waiter_whose_connections_break_gets_its_turn,
            a_server_that_hangs_up_is_an_error_and_then_used_again,
            many_callers_do_not_storm_a_server_that_hangs_up,
        }
        restart "restart" (Mutex) [Need::Restart] {
            a_lock_outlives_a_restart_that_keeps_the_data,
            a_holder_is_told_when_the_store_lost_its_data,
        }
        restart "restart" (Mutex) [Need::Restart, Need::Tokens, Need::TokenFloor] {
            tokens_grow_although_the_store_lost_its_data,
        }
        token "token" (Mutex) [Need::Tokens] {
            tokens_grow_from_hold_to_hold,
            tokens_grow_from_client_to_client,
            a_token_is_greater_than_that_of_a_claim_that_expired,
            tokens_grow_across_the_kinds_of_a_name,
            tokens_grow_past_contenders_that_gave_up,
            a_token_stays_the_same_through_renewals,
            a_token_stays_the_same_when_its_owner_enters_again,
            asking_again_after_a_lost_answer_is_one_grant,
        }
        token "token" (Mutex) [Need::Tokens, Need::Inspect] { a_token_is_greater_than_that_of_a_broken_hold }
        token "token" (Read) [Need::Tokens] { two_readers_have_two_tokens }
        name "name" (Mutex) [] {
            names_that_differ_in_case_are_different,
            names_that_differ_in_accents_are_different,
            a_name_that_begins_like_another_is_different,
            odd_names_exclude_like_any_other,
            odd_names_are_shown_as_they_are,
            what_is_no_name_is_refused_before_any_io,
        }
        owner "owner" (Mutex) [] {
            an_owner_enters_again_through_any_handle,
            the_lock_is_held_until_its_owner_has_released_every_guard,
            another_owner_waits,
            without_an_owner_everybody_is_a_stranger,
            an_owner_of_two_clients_is_a_stranger_to_itself,
            an_owner_holds_each_name_for_itself,
            entering_again_asks_the_store_for_nothing,
            entering_again_with_a_shorter_ttl_shortens_nothing,
            two_tasks_of_an_owner_wait_as_one,
            an_owner_whose_first_task_gives_up_still_gets_in,
            after_a_loss_an_owner_takes_the_lock_anew,
        }
        owner "owner" (Write) [Need::Kind(Kind::Read)] {
            an_owner_that_writes_may_read,
            an_owner_that_reads_is_told_that_it_cannot_write,
            an_owner_goes_on_reading_when_it_no_longer_writes,
        }
        look "look" (Mutex) [Need::Inspect] {
            a_free_lock_shows_nobody,
            a_held_lock_shows_its_holder,
            a_list_shows_what_begins_with_its_prefix_in_order,
            a_prefix_is_taken_literally,
            breaking_a_free_lock_breaks_nothing,
            breaking_a_lock_lets_the_next_one_in,
        }
        look "look" (Fair) [Need::Inspect] {
            those_who_wait_are_shown_in_order,
            breaking_a_lock_leaves_those_who_wait_in_their_places,
        }
        look "look" (Read) [Need::Kind(Kind::Write), Need::Inspect] { breaking_a_lock_breaks_every_reader }
        race "owner" (Mutex) [] { an_owner_that_holds_is_never_refused_whatever_its_other_tasks_do }
        client "client" (Mutex) [] { two_clients_of_one_store_have_one_identity }
        client "client" (Mutex) [Need::Tokens, Need::TokenFloor] {
            the_first_token_of_a_name_is_not_below_the_clock,
        }
        client "client" (Mutex) [Need::Allocated] {
            the_memory_of_clients_does_not_grow_with_the_names_they_used,
        }
        close "close" (Mutex) [] {
            closing_ends_the_wait,
            a_closed_client_takes_no_lock,
            closing_waits_for_what_is_held,
            what_was_dropped_has_left_when_closing_ends,
        }
        option "option" (Mutex) [] {
            options_that_make_no_sense_are_refused_before_any_io,
            the_longest_wait_is_a_wait,
            the_longest_ttl_can_be_held,
            the_shortest_ttl_is_short_but_no_panic,
        }
    };
    [cancelled.concat(), others].concat()
}

/// All of them, in the order in which they are run.
pub fn all() -> Vec<Case> {
    [
        exclusive!("mutex", Mutex),
        exclusive!("fair", Fair),
        exclusive!("write", Write),
        order(),
        sharing(),
        kinds(),
        downgrades(),
        lives(),
    ]
    .concat()
}

fn order() -> Vec<Case> {
    table! {
        fair "order" (Fair) [] {
            waiters_are_granted_in_order_of_arrival,
            waits_of_all_lengths_keep_the_order,
            a_newcomers_try_does_not_overtake_a_waiter,
            a_newcomer_does_not_overtake_a_waiter,
            a_try_leaves_no_place_in_the_queue,
            order_is_kept_when_a_waiter_in_the_middle_leaves,
            order_is_kept_when_the_first_waiter_leaves,
            order_is_kept_when_a_wait_runs_out,
            order_is_kept_when_the_holder_crashes,
            a_crashed_waiter_blocks_others_for_no_longer_than_its_ttl_or_session,
            a_waiter_that_crashed_alone_blocks_nobody_after_its_ttl_or_session,
            a_waiter_keeps_its_place_far_beyond_its_ttl,
        }
    }
}

fn sharing() -> Vec<Case> {
    table! {
        rwlock "rwlock" (Read) [Need::Kind(Kind::Write)] {
            readers_share,
            many_readers_hold_at_the_same_time,
            a_writer_excludes_readers_and_writers,
            a_reader_waits_for_a_writer,
            a_try_to_write_is_busy_beside_a_reader,
            a_dropped_reader_lets_a_writer_in,
            a_writer_waits_for_all_readers,
            one_of_two_readers_keeps_a_try_to_write_out,
            a_reader_that_comes_after_a_waiting_writer_waits_behind_it,
            a_try_to_read_does_not_overtake_a_waiting_writer,
            a_waiting_writer_that_leaves_lets_the_readers_behind_it_in,
            readers_behind_a_writer_enter_together,
            a_crashed_reader_is_forgotten_while_others_read,
            readers_hold_far_beyond_the_ttl,
            readers_without_rest_do_not_starve_a_writer,
            writers_without_rest_do_not_starve_a_reader,
            downgrading_a_reader_changes_nothing,
        }
        rwlock "rwlock" (Read) [Need::Kind(Kind::Write), Need::Tokens] {
            the_tokens_of_writers_grow_past_those_of_readers,
        }
        stress "rwlock" (Read) [Need::Kind(Kind::Write)] { readers_never_see_a_write_half_done }
    }
}

fn kinds() -> Vec<Case> {
    table! {
        kinds "kinds" (Mutex) [] {
            a_kind_that_the_store_lacks_is_refused_without_asking_it,
            a_lock_of_any_kind_works_through_its_trait,
            a_builder_takes_the_lock_that_the_trait_takes,
            a_lock_is_held_while_its_work_runs_and_free_afterwards,
        }
        kinds "kinds" (Mutex) [Need::Kind(Kind::Fair)] { a_mutex_and_a_fair_lock_never_both_hold }
        kinds "kinds" (Mutex) [Need::Kind(Kind::Write)] { a_mutex_and_a_writer_never_both_hold }
        kinds "kinds" (Mutex) [Need::Kind(Kind::Read)] { a_mutex_and_a_reader_never_both_hold }
        kinds "kinds" (Fair) [Need::Kind(Kind::Write)] { a_fair_lock_and_a_writer_never_both_hold }
        kinds "kinds" (Fair) [Need::Kind(Kind::Read)] { a_fair_lock_and_a_reader_never_both_hold }
        stress "kinds" (Mutex) [] { contenders_of_all_kinds_never_meet }
    }
}
