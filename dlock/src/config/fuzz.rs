//! Fuzz targets of the configuration in TOML.

use toml::de::{DeTable, DeValue};

use super::*;

/// The secret of the configurations of the corpus.
const SECRET: &str = "hunter2";

/// Returns whether the secret is nowhere but in the password of a URL.
fn is_only_password(text: &str) -> bool {
    fn strings(value: &DeValue<'_>, key: &str, found: &mut Vec<(String, String)>) {
        match value {
            DeValue::String(text) => found.push((key.to_owned(), text.to_string())),
            DeValue::Array(all) => all.iter().for_each(|each| strings(each.get_ref(), "", found)),
            DeValue::Table(table) => table_strings(table, found),
            _ => {}
        }
    }
    fn table_strings(table: &DeTable<'_>, found: &mut Vec<(String, String)>) {
        for (key, value) in table.iter() {
            found.push(("key".to_owned(), key.get_ref().to_string()));
            strings(value.get_ref(), key.get_ref(), found);
        }
    }
    let Ok(table) = DeTable::parse(text) else { return true };
    let mut found = Vec::new();
    table_strings(table.get_ref(), &mut found);
    let secrets: Vec<_> = found.iter().filter(|(_, text)| text.contains(SECRET)).collect();
    secrets.iter().all(|(key, text)| {
        let url = text.parse::<StoreUrl>();
        // The name of a variable that is not set is shown.
        key == "url"
            && !text.contains("${")
            && text.matches(SECRET).count() == 1
            && url.is_ok_and(|url| url.password().is_some_and(|password| password.contains(SECRET)))
    })
}

#[test]
fn a_configuration_is_complete_or_its_error_shows_no_secret() {
    dlock_fuzz::target!("config").check(|input| {
        let text = input.text();
        let config = match Config::from_toml(&text) {
            Ok(config) => config,
            Err(error) => {
                let shown = format!("{error} {error:?}");
                assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
                assert!(shown.contains("line "), "{shown} has no place");
                assert!(!is_only_password(&text) || !shown.contains(SECRET), "{shown}");
                return;
            }
        };
        let stores: Vec<_> = config.stores().collect();
        assert!(stores.contains(&config.default_store()), "{}", config.default_store());
        let shown: Vec<_> = stores.iter().map(|store| config.shown(store).expect("a store")).collect();
        if is_only_password(&text) {
            let all = format!("{config:?} {shown:?}");
            assert!(!all.contains(SECRET), "{all}");
        }
        for lock in [&*input.other_text(), "billing/42", ""] {
            let store = config.store_of(lock);
            assert!(stores.contains(&store) && !config.urls(store).is_empty(), "{lock} is in {store}");
            let has_rule = config.rule(lock).is_some();
            assert!(has_rule || store == config.default_store(), "{lock}");
            assert!(has_rule || config.wait_of(lock) == config.store_wait(store), "{lock}");
            assert!(has_rule || config.who_of(lock) == config.store_who(store), "{lock}");
        }
    });
}
