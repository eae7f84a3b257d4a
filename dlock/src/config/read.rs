//! Reads a [`Config`] from TOML. Errors name the place: file, line, column, store and key.

use std::{collections::BTreeMap, ops::Range, path::Path, time::Duration};

use dlock_core::{Error, Result, Who};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use wildmatch::WildMatch;

use super::{
    Config, NamedStore, Options, Rule, Source, duration,
    variables::{substitute, substitute_url},
    wait,
};

/// Keys of lock options, in stores and in rules.
const OPTIONS: [&str; 9] =
    ["ttl", "lease", "renew_every", "max_hold", "margin", "at_least", "wait", "who", "class"];

/// Error for a text without stores.
const NO_STORE: &str = "the configuration has no store; write `stores.main.url = \"…\"`";

/// A TOML text and its file.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    pub(super) file: Option<&'a Path>,
}

/// A table of the text.
struct Table<'a> {
    text: Text<'a>,
    /// Subject of the table for errors, such as `store `a``. Empty for the whole text.
    about: String,
    span: Range<usize>,
    entries: &'a DeTable<'a>,
}

impl<'a> Text<'a> {
    pub(super) fn read(self) -> Result<Config> {
        let parsed = DeTable::parse(self.text).map_err(|error| {
            // `Display` of the error prints the line, which may contain a password.
            let what = error.message().trim_end().replace('\n', " ");
            self.invalid(error.span().unwrap_or_default(), &what)
        })?;
        let top = Table { text: self, about: String::new(), span: 0..0, entries: parsed.get_ref() };
        top.allow(&["default", "stores", "rules"])?;
        let stores = top.stores()?;
        let default = top.default(&stores)?;
        let rules = top.rules(&stores, &default)?;
        Ok(Config { default, stores, rules })
    }

    /// Returns the start of the span as `FILE:LINE:COLUMN`.
    fn place(self, span: &Range<usize>) -> String {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        match self.file {
            Some(file) => format!("{}:{line}:{column}", file.display()),
            None => format!("configuration, line {line}, column {column}"),
        }
    }

    fn invalid(self, span: Range<usize>, what: &str) -> Error {
        Error::InvalidConfig { reason: format!("{}: {what}", self.place(&span)) }
    }
}

impl<'a> Table<'a> {
    fn stores(&self) -> Result<BTreeMap<String, NamedStore>> {
        let Some(stores) = self.entries.get("stores") else {
            return Err(self.text.invalid(0..0, NO_STORE));
        };
        let entries = self.table("stores", stores)?;
        if entries.is_empty() {
            return Err(self.text.invalid(stores.span(), NO_STORE));
        }
        let mut found = BTreeMap::new();
        for (name, value) in entries {
            let about = format!("store `{}`", name.get_ref());
            let entries = self.table(&about, value)?;
            let table = Table { text: self.text, about, span: name.span(), entries };
            found.insert(name.get_ref().to_string(), table.store()?);
        }
        for (name, value) in entries {
            if let Source::Majority { members, .. } = &found[name.get_ref().as_ref()].source {
                for member in members {
                    let wrong = match found.get(member).map(|store| &store.source) {
                        Some(Source::Url(_)) => continue,
                        Some(Source::Majority { .. }) => format!("`{member}` is a redlock itself"),
                        None => format!("there is no store `{member}`; there are: {}", known(&found)),
                    };
                    let about = format!("store `{}`, `redlock`: {wrong}", name.get_ref());
                    return Err(self.text.invalid(value.span(), &about));
                }
            }
        }
        Ok(found)
    }

    fn store(&self) -> Result<NamedStore> {
        self.allow(&[&["url", "redlock", "member_timeout"], &OPTIONS[..]].concat())?;
        let member_timeout = self.duration("member_timeout")?;
        let source = match (self.string("url")?, self.strings("redlock")?) {
            (Some(_), None) if member_timeout.is_some() => {
                return Err(self.at(
                    "member_timeout",
                    "only a `redlock` has a member timeout, and this store is a `url`",
                ));
            }
            (Some(url), None) => Source::Url(url),
            (None, Some(members)) => Source::Majority { members, member_timeout },
            _ => return Err(self.invalid("a store must have either `url` or `redlock`")),
        };
        Ok(NamedStore { place: self.place(), source, options: self.options()? })
    }

    /// Returns the store of the locks without a rule.
    fn default(&self, stores: &BTreeMap<String, NamedStore>) -> Result<String> {
        let default = match self.string("default")? {
            Some(default) => default,
            None if stores.len() == 1 => known(stores),
            None => {
                let what = format!("`default` must name one of the stores; there are: {}", known(stores));
                return Err(self.text.invalid(0..0, &what));
            }
        };
        self.exists("default", stores, &default)?;
        Ok(default)
    }

    fn rules(&self, stores: &BTreeMap<String, NamedStore>, default: &str) -> Result<Vec<Rule>> {
        let Some(rules) = self.entries.get("rules") else { return Ok(Vec::new()) };
        let array = rules.get_ref().as_array();
        let array =
            array.ok_or_else(|| self.at("rules", "it must be an array of tables; write `[[rules]]`"))?;
        let read = |value: &'a Spanned<DeValue<'a>>| {
            let entries = self.table("a rule", value)?;
            let lock = entries.get("lock").and_then(|lock| lock.get_ref().as_str());
            let about = lock.map_or_else(|| "a rule".to_owned(), |lock| format!("the rule for `{lock}`"));
            let table = Table { text: self.text, about, span: value.span(), entries };
            table.allow(&[&["lock", "store"], &OPTIONS[..]].concat())?;
            let lock = table.string("lock")?;
            let lock = lock.ok_or_else(|| {
                table.invalid("a rule must name its locks; write for example `lock = \"billing/*\"`")
            })?;
            let store = table.string("store")?.unwrap_or_else(|| default.to_owned());
            table.exists("store", stores, &store)?;
            let options = table.options()?;
            Ok(Rule { place: table.place(), glob: WildMatch::new(&lock), store, options })
        };
        array.iter().map(read).collect()
    }

    fn options(&self) -> Result<Options> {
        let text = self.value("wait")?;
        let wait = text.map(|text| wait(&text).map_err(|hint| self.invalid_duration("wait", &text, &hint)));
        Ok(Options {
            ttl: self.duration("ttl")?,
            lease: self.duration("lease")?,
            renew_every: self.duration("renew_every")?,
            max_hold: self.duration("max_hold")?,
            margin: self.duration("margin")?,
            at_least: self.duration("at_least")?,
            wait: wait.transpose()?,
            class: self.string("class")?.map(Into::into),
            who: self.label("who")?,
        })
    }

    fn duration(&self, key: &str) -> Result<Option<Duration>> {
        let text = self.value(key)?;
        text.map(|text| duration(&text).map_err(|hint| self.invalid_duration(key, &text, &hint))).transpose()
    }

    fn label(&self, key: &str) -> Result<Option<Who>> {
        let text = self.string(key)?;
        text.map(|text| Who::new(text).map_err(|error| self.at(key, &error.to_string()))).transpose()
    }

    fn invalid_duration(&self, key: &str, text: &str, hint: &str) -> Error {
        self.at(key, &format!("`{}` is not a duration; {hint}", text.escape_debug()))
    }

    /// Returns the value of a key that is a string or a number, as text.
    fn value(&self, key: &str) -> Result<Option<String>> {
        match self.entries.get(key).map(Spanned::get_ref) {
            Some(DeValue::Integer(number)) if number.radix() == 10 => Ok(Some(number.as_str().to_owned())),
            Some(DeValue::Float(number)) => Ok(Some(number.as_str().to_owned())),
            _ => self.string(key),
        }
    }

    fn string(&self, key: &str) -> Result<Option<String>> {
        self.entries.get(key).map(|value| self.text_of(key, value.get_ref())).transpose()
    }

    fn strings(&self, key: &str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.entries.get(key) else { return Ok(None) };
        let array = value.get_ref().as_array();
        let array = array.ok_or_else(|| {
            self.at(key, "it must be an array of names, for example `[\"a\", \"b\", \"c\"]`")
        })?;
        array.iter().map(|value| self.text_of(key, value.get_ref())).collect::<Result<_>>().map(Some)
    }

    fn text_of(&self, key: &str, value: &DeValue<'_>) -> Result<String> {
        let wrong =
            || self.at(key, &format!("it must be a string in quotes, but is of type {}", value.type_str()));
        let text = value.as_str().ok_or_else(wrong)?;
        let text = if key == "url" { substitute_url(text) } else { substitute(text) };
        text.map_err(|what| self.at(key, &what))
    }

    fn table(&self, about: &str, value: &'a Spanned<DeValue<'a>>) -> Result<&'a DeTable<'a>> {
        let wrong = || self.text.invalid(value.span(), &format!("{about}: it must be a table"));
        value.get_ref().as_table().ok_or_else(wrong)
    }

    /// Refuses keys that are not in `known`.
    fn allow(&self, known: &[&str]) -> Result<()> {
        match self.entries.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
            None => Ok(()),
            Some(key) => {
                let what = format!("there is no key `{}`; there are: {}", key.get_ref(), known.join(", "));
                Err(self.text.invalid(key.span(), &self.with_subject(&what)))
            }
        }
    }

    fn exists(&self, key: &str, stores: &BTreeMap<String, NamedStore>, name: &str) -> Result<()> {
        if stores.contains_key(name) {
            return Ok(());
        }
        Err(self.at(key, &format!("there is no store `{name}`; there are: {}", known(stores))))
    }

    /// Returns the place and the subject of the table, for errors that are detected later.
    fn place(&self) -> String {
        format!("{}: {}", self.text.place(&self.span), self.about)
    }

    fn with_subject(&self, what: &str) -> String {
        if self.about.is_empty() { what.to_owned() } else { format!("{}: {what}", self.about) }
    }

    fn invalid(&self, what: &str) -> Error {
        self.text.invalid(self.span.clone(), &self.with_subject(what))
    }

    fn at(&self, key: &str, what: &str) -> Error {
        let span = self.entries.get(key).map_or_else(|| self.span.clone(), Spanned::span);
        let about = if self.about.is_empty() { String::new() } else { format!("{}, ", self.about) };
        self.text.invalid(span, &format!("{about}`{key}`: {what}"))
    }
}

/// Returns the names of the stores, for errors.
fn known(stores: &BTreeMap<String, NamedStore>) -> String {
    stores.keys().cloned().collect::<Vec<_>>().join(", ")
}
