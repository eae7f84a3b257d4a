//! The property of every store's configuration.

use std::fmt::Debug;

use dlock_core::{Error, Result, driver::StoreUrl};

use crate::Target;

/// The password of the URLs of the corpora.
const PASSWORD: &str = "hunter2";

/// Checks that neither a configuration nor the error for an invalid one shows the password of its
/// URL.
///
/// # Panics
/// With a URL whose password is shown, or whose error is no [`Error::InvalidConfig`].
pub fn config_shows_no_password<C: Debug>(urls: Target, from_url: impl Fn(&StoreUrl) -> Result<C>) {
    urls.check(|input| {
        let text = input.text();
        let Ok(url) = text.parse::<StoreUrl>() else { return };
        let config = from_url(&url);
        let is_only_password = url.password().is_some_and(|password| password.contains(PASSWORD))
            && text.matches(PASSWORD).count() == 1;
        if is_only_password {
            let shown = match &config {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains(PASSWORD), "{text} shows {shown}");
        }
        if let Err(error) = config {
            assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
        }
    });
}
