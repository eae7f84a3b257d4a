//! Conversion of a client crate's errors into ours: a verdict says what each error means for the
//! caller, in the same words on all stores.

use std::{borrow::Cow, error::Error as StdError, fmt, pin::pin, sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::model::{BoxError, Error, Result, duration};

/// The meaning of a client crate's error for the caller. Each verdict has a text that says what
/// happened and what to do about it.
///
/// A driver has one function that maps all errors of its client crate to verdicts. The last arm of
/// the function returns [`Permanent`](Self::Permanent).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store cannot be reached or cannot reply now. A retry may succeed. Becomes
    /// [`Error::Unavailable`].
    Transient(Cow<'static, str>),
    /// The store replies but cannot write for now. Becomes [`Error::Unwritable`].
    Unwritable(Cow<'static, str>),
    /// A retry fails again until an operator changes something. Becomes [`Error::Refused`].
    Permanent(Cow<'static, str>),
}

/// Creates the errors of one store. Each driver has a constant of this type, with the store's name
/// as in its URL's scheme.
///
/// ```
/// use dlock_core::driver::{StoreErrors, Verdict, client_error};
/// use std::io::{Error, ErrorKind};
/// const STORE: StoreErrors = StoreErrors::new("table");
///
/// fn explain(error: Error) -> dlock_core::Error {
///     let verdict = match error.kind() {
///         ErrorKind::ConnectionReset => Verdict::Transient("the connection broke".into()),
///         ErrorKind::StorageFull => Verdict::Unwritable("the server's disk is full".into()),
///         _ => Verdict::Permanent("the command failed".into()),
///     };
///     STORE.explain(verdict, error)
/// }
///
/// let error = explain(ErrorKind::ConnectionReset.into());
/// assert!(error.is_transient());
/// let source = client_error::<Error>(&error);
/// assert!(source.is_some_and(|source| source.kind() == ErrorKind::ConnectionReset));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreErrors {
    store: &'static str,
}

/// A verdict's text, with the client crate's error as its source.
#[derive(Debug, thiserror::Error)]
#[error("{advice}")]
struct Explained {
    advice: Cow<'static, str>,
    source: BoxError,
}

/// An error that can be copied, for callers that share one request. The copies have the text of the
/// error's source. They keep the variants `InvalidConfig`, `Unavailable`, `Unwritable` and
/// `Refused`. Any other error becomes `Unavailable` if it is transient, and else `Refused`.
#[derive(Clone, Debug)]
pub struct SharedError {
    store: &'static str,
    variant: Variant,
    text: Arc<str>,
}

#[derive(Clone, Copy, Debug)]
enum Variant {
    InvalidConfig,
    Unavailable,
    Unwritable,
    Refused,
}

impl StoreErrors {
    /// Creates the constant of a store with this name, which is the scheme of its URLs.
    pub const fn new(store: &'static str) -> Self {
        Self { store }
    }

    /// Returns the store's name.
    pub const fn store(self) -> &'static str {
        self.store
    }

    /// Converts an error of the client crate by a verdict. The client crate's error stays available
    /// through [`client_error`].
    pub fn explain(self, verdict: Verdict, error: impl Into<BoxError>) -> Error {
        let explained = |advice| Explained { advice, source: error.into() };
        match verdict {
            Verdict::Transient(advice) => self.unavailable(explained(advice)),
            Verdict::Unwritable(advice) => self.unwritable(explained(advice)),
            Verdict::Permanent(advice) => self.refused(explained(advice)),
        }
    }

    /// Returns [`Error::Unavailable`]: the store did not reply, and a retry may succeed.
    pub fn unavailable(self, source: impl Into<BoxError>) -> Error {
        Error::Unavailable { store: self.store, source: source.into() }
    }

    /// Returns [`Error::Unwritable`]: the store replies but cannot write for now.
    pub fn unwritable(self, source: impl Into<BoxError>) -> Error {
        Error::Unwritable { store: self.store, source: source.into() }
    }

    /// Returns [`Error::Refused`]: the store refused the request, and will refuse it again.
    pub fn refused(self, source: impl Into<BoxError>) -> Error {
        Error::Refused { store: self.store, source: source.into() }
    }

    /// Puts the host that an error came from in front of its text, for a store with several hosts.
    /// The client crate's error stays available through [`client_error`]. Errors of other variants
    /// than `Unavailable`, `Unwritable` and `Refused` stay unchanged.
    pub fn at_host(self, host: impl fmt::Display, error: Error) -> Error {
        let with_host = |source: BoxError| -> BoxError {
            match source.downcast::<Explained>() {
                Ok(explained) => {
                    Explained { advice: format!("{host}: {}", explained.advice).into(), ..*explained }.into()
                }
                Err(source) => format!("{host}: {source}").into(),
            }
        };
        match error {
            Error::Unavailable { source, .. } => self.unavailable(with_host(source)),
            Error::Unwritable { source, .. } => self.unwritable(with_host(source)),
            Error::Refused { source, .. } => self.refused(with_host(source)),
            error => error,
        }
    }

    /// Returns the error for a reply that does not fit the request. `request` names the request,
    /// such as `a renewal`.
    pub fn unexpected_reply(self, request: &str) -> Error {
        self.refused(format!("unexpected reply to {request}"))
    }

    /// Returns the error for a request without a reply within `limit`. The request may or may not
    /// have been executed.
    pub fn timed_out(self, limit: Duration) -> Error {
        self.unavailable(format!("no reply within {}", duration::text(limit)))
    }

    /// Turns a configuration error into a transient error. For a setting that was valid when the
    /// client connected and is invalid now, perhaps only while its file is being replaced.
    pub fn as_transient(self, error: &Error) -> Error {
        self.unavailable(error.to_string())
    }

    /// Waits at most `limit`, counted from now, for the reply to a call.
    ///
    /// # Errors
    /// [`timed_out`](Self::timed_out) after `limit`, or the error of the call.
    ///
    /// # Cancel safety
    /// That of the call. A call that takes longer is dropped, and the server may still execute it.
    pub async fn with_timeout<T>(self, limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
        // Pinned, because the timeout would copy a large future several times.
        timeout(limit, pin!(call)).await.unwrap_or_else(|_| Err(self.timed_out(limit)))
    }

    /// Makes an error copyable, for callers that share one request.
    pub fn share(self, error: &Error) -> SharedError {
        let (variant, text) = match error {
            Error::InvalidConfig { reason } => (Variant::InvalidConfig, reason.as_str().into()),
            error => {
                let variant = match error {
                    Error::Unwritable { .. } => Variant::Unwritable,
                    error if error.is_transient() => Variant::Unavailable,
                    _ => Variant::Refused,
                };
                (variant, error.source().unwrap_or(error).to_string().into())
            }
        };
        SharedError { store: self.store, variant, text }
    }
}

impl SharedError {
    /// Returns a copy of the error.
    pub fn error(&self) -> Error {
        let (errors, text) = (StoreErrors::new(self.store), &*self.text);
        match self.variant {
            Variant::InvalidConfig => Error::InvalidConfig { reason: text.to_owned() },
            Variant::Unavailable => errors.unavailable(text),
            Variant::Unwritable => errors.unwritable(text),
            Variant::Refused => errors.refused(text),
        }
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the client crate's error from which [`StoreErrors::explain`] made this error.
pub fn client_error<E: StdError + 'static>(error: &Error) -> Option<&E> {
    let (Error::Refused { source, .. }
    | Error::Unavailable { source, .. }
    | Error::Unwritable { source, .. }) = error
    else {
        return None;
    };
    source.downcast_ref::<Explained>()?.source.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const STORE: StoreErrors = StoreErrors::new("table");

    fn source_of(error: &Error) -> String {
        error.source().expect("there is one").to_string()
    }

    #[test]
    fn a_verdict_decides_the_variant_and_keeps_the_client_crates_error() {
        let client_crates = || std::io::Error::other("boom");
        for (verdict, message, is_transient) in [
            (Verdict::Transient("broke".into()), "table is not reachable", true),
            (Verdict::Unwritable("full".into()), "table cannot write at the moment", true),
            (Verdict::Permanent("no rights".into()), "table refused", false),
        ] {
            let (Verdict::Transient(advice) | Verdict::Unwritable(advice) | Verdict::Permanent(advice)) =
                verdict.clone();
            let error = STORE.explain(verdict, client_crates());
            assert_eq!((error.to_string(), error.is_transient()), (message.to_owned(), is_transient));
            assert_eq!(source_of(&error), advice, "the text is not the advice alone");
            let source = client_error::<std::io::Error>(&error).expect("kept");
            assert_eq!(source.to_string(), "boom");
            assert!(client_error::<fmt::Error>(&error).is_none(), "another type");
        }
        assert!(client_error::<std::io::Error>(&STORE.timed_out(Duration::ZERO)).is_none());
    }

    #[test]
    fn an_error_names_its_host_and_keeps_the_client_crates_error() {
        let errors = [
            STORE.unavailable("gone"),
            STORE.explain(Verdict::Unwritable("full".into()), fmt::Error),
            STORE.explain(Verdict::Permanent("no rights".into()), fmt::Error),
        ];
        for error in errors {
            let (text, is_transient) = (source_of(&error), error.is_transient());
            let has_source = client_error::<fmt::Error>(&error).is_some();
            let with_host = STORE.at_host("a:1", error);
            assert_eq!(source_of(&with_host), format!("a:1: {text}"));
            assert_eq!(with_host.is_transient(), is_transient);
            assert_eq!(client_error::<fmt::Error>(&with_host).is_some(), has_source);
        }
        let config = STORE.at_host("a:1", Error::InvalidConfig { reason: "wrong".to_owned() });
        assert!(matches!(config, Error::InvalidConfig { reason } if reason == "wrong"));
    }

    #[test]
    fn a_shared_error_has_the_variant_and_the_text_of_the_original() {
        let config = || Error::InvalidConfig { reason: "wrong".to_owned() };
        for error in [
            STORE.unavailable("gone"),
            STORE.explain(Verdict::Unwritable("full".into()), fmt::Error),
            STORE.refused("no"),
            config(),
        ] {
            let copy = STORE.share(&error).error();
            assert_eq!(std::mem::discriminant(&copy), std::mem::discriminant(&error));
            assert_eq!(copy.to_string(), error.to_string());
            let texts = [&error, &copy].map(|error| error.source().map(ToString::to_string));
            assert_eq!(texts[0], texts[1]);
        }
        assert!(STORE.as_transient(&config()).is_transient());
    }

    #[test]
    fn a_timeout_shows_its_limit_in_the_notation_of_a_url() {
        for (limit, shown) in
            [(Duration::from_millis(1500), "1500ms"), (Duration::from_secs(315_360_000), "3650d")]
        {
            assert_eq!(source_of(&STORE.timed_out(limit)), format!("no reply within {shown}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_reply_times_out_after_its_limit() {
        let limit = Duration::from_secs(3);
        let error = STORE.with_timeout(limit, pending::<Result<()>>()).await.expect_err("no reply");
        assert!(error.is_transient());
        assert_eq!(source_of(&error), "no reply within 3s");
        assert_eq!(STORE.with_timeout(limit, async { Ok(7) }).await.expect("a reply"), 7);
    }
}
