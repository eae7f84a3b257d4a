//! Exit statuses, and which one an error has. The numbers are those of `sysexits.h` and of the shells.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
    process::ExitCode,
};

use dlock::{Error, LockName, LostReason};
use rustix::process::Signal;

use crate::{output, signals};

pub(crate) const OK: u8 = 0;
/// The status of a command that asks a question, if the answer is no.
pub(crate) const NO: u8 = 1;
pub(crate) const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
const INTERNAL: u8 = 70;
const LOST: u8 = 74;
pub(crate) const BUSY: u8 = 75;
const CONFIG: u8 = 78;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What the statuses of `run` and `try` mean, beside the command's own.
const OF_A_RUN: [(u8, &str); 4] = [
    (BUSY, "the lock was not had in time (or what -E says); of `acquire` too"),
    (LOST, "the lock was lost while the command ran, which was stopped; or a ticket has lost its lock"),
    (NOT_EXECUTABLE, "the command cannot be executed"),
    (NOT_FOUND, "the command was not found"),
];

/// What the statuses of every command mean.
const OF_ALL: [(u8, &str); 5] = [
    (USAGE, "usage: an option, a name, or a kind of lock that cannot be had"),
    (UNREACHABLE, "the store cannot be reached, or cannot write for now (a full disk, for example)"),
    (INTERNAL, "an error inside dlock"),
    (CONFIG, "configuration: the URL, an unknown scheme, a store that refuses (rights, damage)"),
    (NO, "of `inspect` and `unlock`: nobody has the lock"),
];

/// The statuses as `--help` tells them.
pub(crate) fn help() -> String {
    let rows = |rows: &[(u8, &str)]| -> String {
        rows.iter().map(|(status, meaning)| format!("{status:>4}   {meaning}\n")).collect()
    };
    format!(
        "Exit status of `run` and `try` with a command: the command's own, 128+N if signal N killed it, or\n\n{}\n\
         and of every command\n\n{}128+N  signal N ended the waiting\n",
        rows(&OF_A_RUN),
        rows(&OF_ALL),
    )
}

/// The result of a command.
pub(crate) type Outcome<T = u8> = Result<T, Failure>;

/// Why a command ends early: its exit status, and what to say about it, if anything.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: Option<String>,
    /// The message is about the store, and does not know which it is.
    about_store: bool,
    /// Somebody pressed Ctrl-C.
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

    /// The command could not be executed.
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

    /// A signal ended the waiting, or the command: everybody knows why.
    pub(crate) fn stopped(signal: Signal) -> Self {
        let interrupted = signal == Signal::INT;
        Self { status: killed(signal.as_raw()), message: None, about_store: false, interrupted }
    }

    /// No message, for a process that nobody waits for any more.
    pub(crate) fn orphaned() -> Self {
        Self { status: LOST, message: None, about_store: false, interrupted: false }
    }

    /// Replaces the status that means that the lock is busy, and says nothing of it if that is what is wanted.
    pub(crate) fn busy_as(self, status: u8, is_silent: bool) -> Self {
        if self.status != BUSY {
            return self;
        }
        Self { status, message: self.message.filter(|_| !is_silent), ..self }
    }

    /// Whether the lock was lost: then nothing is left to be released.
    pub(crate) fn is_loss(&self) -> bool {
        self.status == LOST
    }

    /// Adds to the message.
    pub(crate) fn and(mut self, more: &str) -> Self {
        if let Some(message) = &mut self.message {
            message.push_str(more);
        }
        self
    }

    /// Says which store it is, where the message is about that.
    pub(crate) fn of_store(self, which: &str) -> Self {
        if self.about_store { self.and(&format!("; {which}")) } else { self }
    }

    /// Prints the message now, and not again at the end.
    pub(crate) fn said(mut self) -> Self {
        if let Some(message) = self.message.take() {
            output::say(&message);
        }
        self
    }

    /// Prints the message if it was not printed yet, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let Self { status, interrupted, .. } = self.said();
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
                "; the kind is chosen by --read, --write, --fair or --slots, or by none of them for a plain lock",
            ),
            Error::Unsupported { .. } => (
                USAGE,
                "; choose another store, or if it is about the kind of lock: --read, --write, --fair, --slots, or none of them",
            ),
            Error::Deadlock { .. } | Error::InvalidName { .. } | Error::InvalidOptions { .. } => (USAGE, ""),
            Error::InvalidConfig { .. } => (CONFIG, ""),
            Error::Unavailable { .. } | Error::Unwritable { .. } => (UNREACHABLE, ""),
            // Rights, corruption, a version: trying again does not help, because somebody must repair the store.
            Error::Refused { .. } => (CONFIG, ""),
            // No command closes its client and goes on.
            Error::Closed { .. } => (INTERNAL, ""),
            _ => (INTERNAL, ""),
        };
        let about_store = matches!(status, CONFIG | UNREACHABLE);
        Self { about_store, ..Self::new(status, chain(&error) + hint) }
    }
}

/// An error and its causes.
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

/// The status of a process that a signal killed, as shells give it.
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
            (Error::Timeout { name: name(), waited: std::time::Duration::ZERO, source: None }, 75),
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
            let shown = format!("{error:?}");
            assert_eq!(Failure::from(error).status, status, "{shown}");
        }
    }

    #[test]
    fn a_kind_that_cannot_be_had_names_the_flags() {
        let name = LockName::new("x").unwrap();
        for error in [
            Error::WrongKind { name, kind: Kind::Mutex, reason: "it is a read/write lock".to_owned() },
            Error::Unsupported { store: "redis", what: "lock for fair".to_owned() },
        ] {
            let message = Failure::from(error).message.unwrap();
            assert!(["--read", "--write", "--fair"].iter().all(|flag| message.contains(flag)), "{message}");
        }
    }

    #[test]
    fn the_causes_of_an_error_are_said_once() {
        let source = io::Error::other(Error::InvalidConfig { reason: "connection refused".to_owned() });
        let error = Error::Unavailable { store: "redis", source: source.into() };
        assert_eq!(chain(&error), "redis is not reachable: connection refused");
    }

    #[test]
    fn only_busy_is_replaced_by_another_status() {
        assert_eq!(Failure::busy("x").busy_as(9, false).status, 9);
        assert_eq!(Failure::usage("x").busy_as(9, true).status, 64);
        assert_eq!(Failure::busy("x").busy_as(9, true).message, None);
        assert!(Failure::usage("x").busy_as(9, true).message.is_some(), "an error is told");
    }
}
