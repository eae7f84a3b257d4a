//! Fuzz target of the configuration in a URL.

use dlock_core::Error;

use super::*;

/// The secret of the URLs of the corpus.
const SECRET: &str = "hunter2";

#[test]
fn a_configuration_and_its_errors_show_no_password() {
    dlock_fuzz::target!("url").check(|input| {
        let text = input.text();
        let Ok(url) = text.parse::<StoreUrl>() else { return };
        let configured = SqliteConfig::from_url(&url);
        let is_only_password = url.password().is_some_and(|password| password.contains(SECRET))
            && text.matches(SECRET).count() == 1;
        if is_only_password {
            let shown = match &configured {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains(SECRET), "{text} shows {shown}");
        }
        if let Err(error) = configured {
            assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
        }
    });
}
