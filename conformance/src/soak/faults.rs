//! The faults that the tool injects, and the schedule that follows from the seed.

pub(super) mod disk;
pub(super) mod inject;
pub(super) mod wall_clock;

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use serde::Serialize;

/// A kind of fault.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    /// A client process is stopped and continued.
    Pause,
    /// A client process is killed, and another one takes its place.
    Kill,
    /// The connections of a client break, or carry nothing for some time.
    Cut,
    /// The requests or the replies of a client are late.
    Late,
    /// The wall clock of a client steps.
    Clock,
    /// The disk of the store is full.
    Full,
}

impl FaultKind {
    /// Returns the name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::Late => "late",
            Self::Clock => "clock",
            Self::Full => "full",
        }
    }

    /// Returns whether the fault needs a relay between client and server.
    pub(super) fn needs_relay(self) -> bool {
        matches!(self, Self::Cut | Self::Late)
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Longest fault of the network and of the disk.
pub(super) const LONGEST_FAULT: Duration = Duration::from_secs(4);

/// Longest pause between two faults of a burst.
const LONGEST_GAP: Duration = Duration::from_millis(1500);

/// Time for a killed client to connect again, which is not available for another fault of it.
const RESTART: Duration = Duration::from_secs(1);

/// A fault that is to be injected.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    /// Time from the start of the run.
    pub(super) at: Duration,
    pub(super) client: usize,
    pub(super) action: Action,
}

/// A fault with its parameters, of which most are its length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    Pause(Duration),
    /// The client is restarted after this time.
    Kill(Duration),
    /// Each connection breaks, and new ones too.
    HangUp(Duration),
    /// Each connection breaks once.
    Break,
    /// Connections stay open and carry nothing.
    Stall(Duration),
    LateReplies {
        by: Duration,
        lasting: Duration,
    },
    LateRequests {
        by: Duration,
        lasting: Duration,
    },
    /// The wall clock differs by this number of seconds from now on.
    Step(i64),
    Fill(Duration),
}

impl Action {
    pub(super) fn kind(self) -> FaultKind {
        match self {
            Self::Pause(_) => FaultKind::Pause,
            Self::Kill(_) => FaultKind::Kill,
            Self::HangUp(_) | Self::Break | Self::Stall(_) => FaultKind::Cut,
            Self::LateReplies { .. } | Self::LateRequests { .. } => FaultKind::Late,
            Self::Step(_) => FaultKind::Clock,
            Self::Fill(_) => FaultKind::Full,
        }
    }

    /// Returns the length of the fault.
    pub(super) fn length(self) -> Duration {
        match self {
            Self::Pause(length)
            | Self::Kill(length)
            | Self::HangUp(length)
            | Self::Stall(length)
            | Self::Fill(length) => length,
            // A byte that arrived last is late by as much.
            Self::LateReplies { by, lasting } | Self::LateRequests { by, lasting } => by + lasting,
            Self::Break | Self::Step(_) => Duration::ZERO,
        }
    }

    fn draw(kind: FaultKind, ttl: Duration, dice: &mut Rng) -> Self {
        let mut up_to = |longest: Duration| longest.mul_f64(dice.f64()).max(Duration::from_millis(50));
        let (length, by) = (up_to(LONGEST_FAULT), up_to(LONGEST_FAULT));
        match kind {
            FaultKind::Pause => Self::Pause(up_to(ttl * 2)),
            FaultKind::Kill => Self::Kill(up_to(ttl / 2)),
            FaultKind::Cut => match dice.u8(..3) {
                0 => Self::Break,
                1 => Self::HangUp(length),
                _ => Self::Stall(length),
            },
            FaultKind::Late if dice.bool() => Self::LateReplies { by, lasting: length },
            FaultKind::Late => Self::LateRequests { by, lasting: length },
            FaultKind::Clock => Self::Step(dice.i64(-7200..=7200)),
            FaultKind::Full => Self::Fill(length),
        }
    }
}

/// Parameters of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) kinds: Vec<FaultKind>,
    pub(super) clients: usize,
    pub(super) ttl: Duration,
    /// Length of the whole run.
    pub(super) span: Duration,
    /// Length of the calm after each burst of faults, in which the store has to recover.
    pub(super) calm: Duration,
}

impl Schedule {
    /// Returns the faults of a run, in order of time. They come in bursts with calms between them.
    /// Every fault ends within the run. The faults of one client do not overlap.
    pub(super) fn draw(&self, dice: &mut Rng) -> Vec<Planned> {
        let mut faults = Vec::new();
        if self.kinds.is_empty() {
            return faults;
        }
        let burst = self.ttl * 4;
        let mut busy_until = vec![Duration::ZERO; self.clients];
        let mut deck = Vec::new();
        let (mut at, mut burst_end) = (Duration::ZERO, burst);
        loop {
            at += LONGEST_GAP.mul_f64(dice.f64());
            if at > burst_end {
                // The calm begins when the last fault of the burst has ended.
                at = busy_until.iter().copied().fold(at, Duration::max) + self.calm;
                burst_end = at + burst;
            }
            if at >= self.span {
                return faults;
            }
            let client = dice.usize(..self.clients);
            if deck.is_empty() {
                // Every kind occurs as often as the others.
                deck.clone_from(&self.kinds);
                dice.shuffle(&mut deck);
            }
            if busy_until[client] > at {
                continue;
            }
            let Some(kind) = deck.pop() else { continue };
            let action = Action::draw(kind, self.ttl, dice);
            let restart = if kind == FaultKind::Kill { RESTART } else { Duration::ZERO };
            let end = at + action.length() + restart;
            if end < self.span {
                busy_until[client] = end;
                faults.push(Planned { at, client, action });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn schedule() -> Schedule {
        Schedule {
            kinds: FaultKind::value_variants().to_vec(),
            clients: 3,
            ttl: 5 * S,
            span: 300 * S,
            calm: 20 * S,
        }
    }

    #[test]
    fn a_seed_determines_the_faults() {
        let draw = |seed| schedule().draw(&mut Rng::with_seed(seed));
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn every_kind_occurs_and_every_fault_ends_within_the_run() {
        let faults = schedule().draw(&mut Rng::with_seed(1));
        for kind in FaultKind::value_variants() {
            let count = faults.iter().filter(|fault| fault.action.kind() == *kind).count();
            assert!(count > 2, "{kind} occurs {count} times in {} faults", faults.len());
        }
        assert!(faults.iter().all(|fault| fault.at + fault.action.length() < 300 * S));
    }

    #[test]
    fn the_faults_of_a_client_do_not_overlap() {
        for seed in 0..20 {
            let mut end = [Duration::ZERO; 3];
            for Planned { at, client, action } in schedule().draw(&mut Rng::with_seed(seed)) {
                assert!(at >= end[client], "seed {seed}: client {client} has two faults at {at:?}");
                end[client] = at + action.length();
            }
        }
    }

    #[test]
    fn the_store_has_calms_in_which_it_recovers() {
        let faults = schedule().draw(&mut Rng::with_seed(3));
        let mut end = Duration::ZERO;
        let mut calms = 0;
        for Planned { at, action, .. } in faults {
            calms += usize::from(at.saturating_sub(end) >= 20 * S);
            end = end.max(at + action.length());
        }
        assert!(calms > 3, "{calms} calms in five minutes");
    }

    #[test]
    fn without_kinds_there_are_no_faults() {
        assert_eq!(Schedule { kinds: Vec::new(), ..schedule() }.draw(&mut Rng::with_seed(1)), []);
    }
}
