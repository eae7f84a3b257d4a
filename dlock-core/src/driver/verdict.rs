//! Turns the errors of a store's client crate into ours: a verdict says what each means, with one set of texts for all
//! stores.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Error, Result, Source};

/// What an error of a store's client crate means to the caller. Each verdict has a text that says what happened and what to
/// do about it. A driver has one function that judges all errors of its client crate. Its last arm is
/// [`Never`](Self::Never).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store cannot be reached, or cannot answer now; asking again may help: [`Error::Unavailable`].
    Later(Cow<'static, str>),
    /// The store answers, and cannot write for now: [`Error::Unwritable`].
    Unwritable(Cow<'static, str>),
    /// Asking again will not help until somebody changes something: [`Error::Refused`].
    Never(Cow<'static, str>),
}

/// Makes the errors of one store. Each driver has a constant of this type, with the store's name as in its URL's scheme.
///
/// ```
/// use dlock_core::driver::{Failures, Verdict, client_error};
/// use std::io::{Error, ErrorKind};
/// const STORE: Failures = Failures::of("table");
///
/// fn explain(error: Error) -> dlock_core::Error {
///     let verdict = match error.kind() {
///         ErrorKind::ConnectionReset => Verdict::Later("the connection broke".into()),
///         ErrorKind::StorageFull => Verdict::Unwritable("the server's disk is full".into()),
///         _ => Verdict::Never("the command failed".into()),
///     };
///     STORE.explain(verdict, error)
/// }
///
/// let error = explain(ErrorKind::ConnectionReset.into());
/// assert!(error.is_transient());
/// assert!(client_error::<Error>(&error).is_some_and(|own| own.kind() == ErrorKind::ConnectionReset));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures {
    store: &'static str,
}

/// An error's text, with the client crate's own error as its source.
#[derive(Debug, thiserror::Error)]
#[error("{advice}")]
struct Judged {
    advice: Cow<'static, str>,
    source: Source,
}

/// Makes any number of copies of one error, for all callers that wait for the same request.
#[derive(Clone, Debug)]
pub struct Retold {
    store: &'static str,
    means: Means,
    text: Arc<str>,
}

#[derive(Clone, Copy, Debug)]
enum Means {
    InvalidConfig,
    Unavailable,
    Unwritable,
    Refused,
}

impl Failures {
    /// For a store with this name, which is the scheme of its URLs.
    pub const fn of(store: &'static str) -> Self {
        Self { store }
    }

    /// The store's name.
    pub const fn store(self) -> &'static str {
        self.store
    }

    /// Turns the client crate's own error into ours by a verdict. The client's error stays the source; see
    /// [`client_error`].
    pub fn explain(self, verdict: Verdict, error: impl Into<Source>) -> Error {
        let judged = |advice| Judged { advice, source: error.into() };
        match verdict {
            Verdict::Later(advice) => self.unavailable(judged(advice)),
            Verdict::Unwritable(advice) => self.unwritable(judged(advice)),
            Verdict::Never(advice) => self.refused(judged(advice)),
        }
    }

    /// The store did not answer; asking again may help.
    pub fn unavailable(self, source: impl Into<Source>) -> Error {
        Error::Unavailable { store: self.store, source: source.into() }
    }

    /// The store answers, and cannot write for now.
    pub fn unwritable(self, source: impl Into<Source>) -> Error {
        Error::Unwritable { store: self.store, source: source.into() }
    }

    /// The store refused, and will refuse again.
    pub fn refused(self, source: impl Into<Source>) -> Error {
        Error::Refused { store: self.store, source: source.into() }
    }

    /// Names the one of several hosts that an error came from, at the beginning of its text. The client's error stays; see
    /// [`client_error`]. An error that is not the store's stays as it is.
    pub fn at(self, host: impl fmt::Display, error: Error) -> Error {
        let named = |source: Source| -> Source {
            match source.downcast::<Judged>() {
                Ok(judged) => {
                    Judged { advice: format!("{host}: {}", judged.advice).into(), ..*judged }.into()
                }
                Err(source) => format!("{host}: {source}").into(),
            }
        };
        match error {
            Error::Unavailable { source, .. } => self.unavailable(named(source)),
            Error::Unwritable { source, .. } => self.unwritable(named(source)),
            Error::Refused { source, .. } => self.refused(named(source)),
            error => error,
        }
    }

    /// The store's answer does not fit the question. `what` names the question, such as `a renewal`.
    pub fn garbled(self, what: &str) -> Error {
        self.refused(format!("answered {what} with something else"))
    }

    /// The store did not answer within `limit`. What was asked may or may not have happened.
    pub fn late(self, limit: Duration) -> Error {
        self.unavailable(format!("no answer within {limit:?}"))
    }

    /// A setting that was right when the client connected is wrong now, perhaps only while somebody replaces a file. Asking
    /// again may help.
    pub fn not_now(self, error: &Error) -> Error {
        self.unavailable(error.to_string())
    }

    /// Waits for a call's answer for `limit`, counted from now.
    ///
    /// # Errors
    /// [`late`](Self::late), and the call's own.
    ///
    /// # Cancel safety
    /// That of the call. A late call is dropped; the server may still act on it.
    pub async fn in_time<T>(self, limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(limit, call).await.unwrap_or_else(|_| Err(self.late(limit)))
    }

    /// What can copy this error: the copies have the same variant, and the text of the same source.
    pub fn retell(self, error: &Error) -> Retold {
        let (means, text) = match error {
            Error::InvalidConfig { reason } => (Means::InvalidConfig, reason.as_str().into()),
            error => {
                let means = match error {
                    Error::Unwritable { .. } => Means::Unwritable,
                    error if error.is_transient() => Means::Unavailable,
                    _ => Means::Refused,
                };
                (means, error.source().unwrap_or(error).to_string().into())
            }
        };
        Retold { store: self.store, means, text }
    }
}

impl Retold {
    /// A copy of the error.
    pub fn error(&self) -> Error {
        let (failures, text) = (Failures::of(self.store), &*self.text);
        match self.means {
            Means::InvalidConfig => Error::InvalidConfig { reason: text.to_owned() },
            Means::Unavailable => failures.unavailable(text),
            Means::Unwritable => failures.unwritable(text),
            Means::Refused => failures.refused(text),
        }
    }
}

impl fmt::Display for Retold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error of the store's client crate from which [`Failures::explain`] made this error.
pub fn client_error<E: StdError + 'static>(error: &Error) -> Option<&E> {
    let (Error::Refused { source, .. }
    | Error::Unavailable { source, .. }
    | Error::Unwritable { source, .. }) = error
    else {
        return None;
    };
    source.downcast_ref::<Judged>()?.source.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const STORE: Failures = Failures::of("table");

    fn source_of(error: &Error) -> String {
        error.source().expect("there is one").to_string()
    }

    #[test]
    fn a_verdict_says_what_the_caller_can_do_and_keeps_the_clients_error() {
        let own = || std::io::Error::other("boom");
        for (verdict, message, is_transient) in [
            (Verdict::Later("broke".into()), "table is not reachable", true),
            (Verdict::Unwritable("full".into()), "table cannot write at the moment", true),
            (Verdict::Never("no rights".into()), "table refused", false),
        ] {
            let (Verdict::Later(advice) | Verdict::Unwritable(advice) | Verdict::Never(advice)) =
                verdict.clone();
            let error = STORE.explain(verdict, own());
            assert_eq!((error.to_string(), error.is_transient()), (message.to_owned(), is_transient));
            assert_eq!(source_of(&error), advice, "the text is not the advice alone");
            let own = client_error::<std::io::Error>(&error).expect("kept");
            assert_eq!(own.to_string(), "boom");
            assert!(client_error::<fmt::Error>(&error).is_none(), "another type");
        }
        assert!(client_error::<std::io::Error>(&STORE.late(Duration::ZERO)).is_none());
    }

    #[test]
    fn an_error_names_its_host_and_keeps_the_clients_error() {
        let errors = [
            STORE.unavailable("gone"),
            STORE.explain(Verdict::Unwritable("full".into()), fmt::Error),
            STORE.explain(Verdict::Never("no rights".into()), fmt::Error),
        ];
        for error in errors {
            let (text, is_transient) = (source_of(&error), error.is_transient());
            let has_own = client_error::<fmt::Error>(&error).is_some();
            let named = STORE.at("a:1", error);
            assert_eq!(source_of(&named), format!("a:1: {text}"));
            assert_eq!(named.is_transient(), is_transient);
            assert_eq!(client_error::<fmt::Error>(&named).is_some(), has_own);
        }
        let config = STORE.at("a:1", Error::InvalidConfig { reason: "wrong".to_owned() });
        assert!(matches!(config, Error::InvalidConfig { reason } if reason == "wrong"));
    }

    #[test]
    fn an_error_is_told_again_as_what_it_was() {
        let config = || Error::InvalidConfig { reason: "wrong".to_owned() };
        for error in [
            STORE.unavailable("gone"),
            STORE.explain(Verdict::Unwritable("full".into()), fmt::Error),
            STORE.refused("no"),
            config(),
        ] {
            let again = STORE.retell(&error).error();
            assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(&error));
            assert_eq!(again.to_string(), error.to_string());
            let texts = [&error, &again].map(|error| error.source().map(ToString::to_string));
            assert_eq!(texts[0], texts[1]);
        }
        assert!(STORE.not_now(&config()).is_transient());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_is_late_after_its_limit() {
        let limit = Duration::from_secs(3);
        let error = STORE.in_time(limit, pending::<Result<()>>()).await.expect_err("no answer");
        assert!(error.is_transient());
        assert_eq!(source_of(&error), "no answer within 3s");
        assert_eq!(STORE.in_time(limit, async { Ok(7) }).await.expect("an answer"), 7);
    }
}
