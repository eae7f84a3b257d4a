//! Exit statuses, and the mapping of errors to them. The numbers are those of `sysexits.h` and of
//! the shells.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
    process::ExitCode,
};

use dlock::{Error, LockName, LostReason};
use rustix::process::Signal;

use crate::{output, signals};

pub(crate) const OK: u8 = 0;
/// Negative result of a command that tests something, such as `inspect` of a free lock.
pub(crate) const NO: u8 = 1;
pub(crate) const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
const INTERNAL: u8 = 70;
const LOST: u8 = 74;
pub(crate) const BUSY: u8 = 75;
const CONFIG: u8 = 78;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Statuses of `run` and `try` in addition to the command's own, with their meanings.
const OF_A_RUN: [(u8, &str); 4] = [
    (BUSY, "the lock was not free within the wait limit, also for `acquire`; `-E STATUS` replaces 75"),
    (LOST, "the lock was lost, and dlock terminated the command; or the lock of the ticket was lost"),
    (NOT_EXECUTABLE, "the command cannot be executed"),
    (NOT_FOUND, "the command was not found"),
];

/// Statuses that every command may return, with their meanings.
const OF_ALL: [(u8, &str); 5] = [
    (USAGE, "usage: an invalid option or name, or a kind of lock that the store does not support"),
    (UNREACHABLE, "the store cannot be reached, or cannot write at present (a full disk, for example)"),
    (INTERNAL, "an error inside dlock"),
    (CONFIG, "configuration: the URL, an unknown scheme, or a store that refuses (rights, damage)"),
    (NO, "of `inspect` and `unlock`: the lock is not held; of `forget`: no mark; of `leader`: no leader"),
];

/// Returns the section of `--help` about exit statuses.
pub(crate) fn help() -> String {
    let rows = |rows: &[(u8, &str)]| -> String {
        rows.iter().map(|(status, meaning)| format!("{status:>4}   {meaning}\n")).collect()
    };
    format!(
        "Exit status of `run` and `try` with a command: the command's own, 128+N if signal N killed it, or\n\n{}\n\
         and of every command\n\n{}128+N  signal N ended the wait\n",
        rows(&OF_A_RUN),
        rows(&OF_ALL),
    )
}

/// The result of a command.
pub(crate) type Outcome<T = u8> = Result<T, Failure>;

/// The reason why a command ends early: its exit status, and a message unless it is silent.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: Option<String>,
    /// Whether the message is about the store but does not name it.
    about_store: bool,
    /// Whether the user pressed Ctrl-C.
    interrupted: bool,
}

impl Failure {
    fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()), about_store: false, interrupted: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, message)
    }

    pub(crate) fn internal(what: &str, error: &dyn StdError) -> Self {
        Self::new(INTERNAL, format!("{what}: {}", chain(error)))
    }

    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(BUSY, message)
    }

    pub(crate) fn lost(name: &LockName, reason: LostReason, then: &str) -> Self {
        let error = Error::Lost { name: name.clone(), reason };
        Self::new(LOST, format!("{error}; {then}"))
    }

    /// Creates the failure of a command that could not be executed.
    pub(crate) fn exec(command: &str, error: &io::Error) -> Self {
        let (status, hint) = match error.kind() {
            ErrorKind::ArgumentListTooLong => {
                (NOT_EXECUTABLE, "its arguments and the environment are longer than the system allows")
            }
            ErrorKind::NotFound => (NOT_FOUND, "is it installed, and in PATH?"),
            ErrorKind::PermissionDenied => (NOT_EXECUTABLE, "is it a program, and may you execute it?"),
            _ => (NOT_EXECUTABLE, "is it a program for this machine?"),
        };
        Self::new(status, format!("cannot run `{}`: {error}; {hint}", command.escape_debug()))
    }

    /// Creates the silent failure after a signal that ended the wait or the command.
    pub(crate) fn stopped(signal: Signal) -> Self {
        let interrupted = signal == Signal::INT;
        Self { status: killed(signal.as_raw()), message: None, about_store: false, interrupted }
    }

    /// Creates the silent failure of a process whose parent has ended.
    pub(crate) fn orphaned() -> Self {
        Self { status: LOST, message: None, about_store: false, interrupted: false }
    }

    /// Replaces the status of a busy lock, and removes the message if `is_silent`. Does not change
    /// other failures.
    pub(crate) fn busy_as(self, status: u8, is_silent: bool) -> Self {
        if self.status != BUSY {
            return self;
        }
        Self { status, message: self.message.filter(|_| !is_silent), ..self }
    }

    /// Returns whether the lock was lost, so that there is nothing to release.
    pub(crate) fn is_loss(&self) -> bool {
        self.status == LOST
    }

    /// Replaces the message.
    pub(crate) fn say_instead(self, message: String) -> Self {
        Self { message: Some(message), ..self }
    }

    /// Appends a text to the message.
    pub(crate) fn and(mut self, more: &str) -> Self {
        if let Some(message) = &mut self.message {
            message.push_str(more);
        }
        self
    }

    /// Appends the name of the store, if the message is about the store.
    pub(crate) fn of_store(self, store: &str) -> Self {
        if self.about_store { self.and(&format!("; {store}")) } else { self }
    }

    /// Prints the message at once, and removes it so that it is not printed again at the end.
    pub(crate) fn printed(mut self) -> Self {
        if let Some(message) = self.message.take() {
            output::say(&message);
        }
        self
    }

    /// Prints the message, unless that was done before, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let Self { status, interrupted, .. } = self.printed();
        if interrupted {
            output::flush();
            signals::die_of_interrupt();
        }
        status.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (status, hint) = match &error {
            Error::Timeout { .. } => (BUSY, ""),
            Error::Lost { .. } => (LOST, ""),
            Error::WrongKind { .. } => (
                USAGE,
                "; select another kind with --read, --write, --fair or --slots, or a plain lock without them",
            ),
            Error::Unsupported { what, .. } if what.starts_with("grant locks of kind") => (
                USAGE,
                "; use another store, or select another kind with --read, --write, --fair or --slots, or a plain lock without them",
            ),
            Error::Unsupported { .. }
            | Error::Deadlock { .. }
            | Error::InvalidName { .. }
            | Error::InvalidOptions { .. } => (USAGE, ""),
            Error::InvalidConfig { .. } => (CONFIG, ""),
            Error::Unavailable { .. } | Error::Unwritable { .. } => (UNREACHABLE, ""),
            // Rights, corruption or a version. A retry does not help, because a person must repair
            // the store.
            Error::Refused { .. } => (CONFIG, ""),
            // No command uses a client after it has closed it.
            Error::Closed { .. } => (INTERNAL, ""),
            _ => (INTERNAL, ""),
        };
        let about_store = matches!(status, CONFIG | UNREACHABLE);
        Self { about_store, ..Self::new(status, chain(&error) + hint) }
    }
}

/// Returns the messages of an error and its causes in one line.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors include the text of their source. Do not show it twice.
        if !message.ends_with(&cause_text) {
            message = format!("{message}: {cause_text}");
        }
        source = cause.source();
    }
    message
}

/// Returns the status that shells report for a process that a signal has killed.
pub(crate) fn killed(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use dlock::Kind;

    use super::*;

    #[test]
    fn every_error_has_its_status() {
        let name = || LockName::new("x").unwrap();
        let (kind, store, reason) = (Kind::Mutex, "redis", || "why".to_owned());
        for (error, status) in [
            (Error::Timeout { name: name(), limit: std::time::Duration::ZERO, source: None }, 75),
            (Error::Lost { name: name(), reason: LostReason::Expired }, 74),
            (Error::Deadlock { name: name(), kind }, 64),
            (Error::WrongKind { name: name(), kind, reason: reason() }, 64),
            (Error::Unsupported { store, what: reason() }, 64),
            (Error::InvalidName { name: String::new(), reason: reason() }, 64),
            (Error::InvalidOptions { reason: reason() }, 64),
            (Error::InvalidConfig { reason: reason() }, 78),
            (Error::Closed { name: name() }, 70),
            (Error::Unavailable { store, source: "why".into() }, 69),
            (Error::Unwritable { store, source: "why".into() }, 69),
            (Error::Refused { store, source: "why".into() }, 78),
            (Error::NoRuntime { name: name() }, 70),
        ] {
            let text = format!("{error:?}");
            assert_eq!(Failure::from(error).status, status, "{text}");
        }
    }

    #[test]
    fn a_kind_that_cannot_be_had_names_the_flags() {
        let name = LockName::new("x").unwrap();
        for error in [
            Error::WrongKind { name, kind: Kind::Mutex, reason: "it is a read/write lock".to_owned() },
            Error::Unsupported {
                store: "redis",
                what: "grant locks of kind fair; it supports mutex".to_owned(),
            },
        ] {
            let message = Failure::from(error).message.unwrap();
            assert!(["--read", "--write", "--fair"].iter().all(|flag| message.contains(flag)), "{message}");
        }
    }

    #[test]
    fn the_causes_of_an_error_are_printed_once() {
        let source = io::Error::other(Error::InvalidConfig { reason: "connection refused".to_owned() });
        let error = Error::Unavailable { store: "redis", source: source.into() };
        assert_eq!(chain(&error), "redis is not reachable: connection refused");
    }

    #[test]
    fn only_busy_is_replaced_by_another_status() {
        assert_eq!(Failure::busy("x").busy_as(9, false).status, 9);
        assert_eq!(Failure::usage("x").busy_as(9, true).status, 64);
        assert_eq!(Failure::busy("x").busy_as(9, true).message, None);
        assert!(Failure::usage("x").busy_as(9, true).message.is_some(), "a usage error has no message");
    }
}
