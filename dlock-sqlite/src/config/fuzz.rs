//! Fuzz target of the configuration in a URL.

use super::*;

#[test]
fn a_configuration_and_its_errors_show_no_password() {
    dlock_fuzz::config_shows_no_password(dlock_fuzz::target!("url"), SqliteConfig::from_url);
}
