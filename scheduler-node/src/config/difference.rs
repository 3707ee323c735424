//! The difference between the configuration in force and one that was read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use common::ids::DatabaseName;
use figment::value::{Dict, Value};
use secrecy::{ExposeSecret, SecretString};

use super::{
    Config, Database,
    keys::{KEYS, Key},
    tree::Tree,
};

const DATABASE: &str = "database";
const TOKENS: &str = "auth.token";
const DELAY_EXCHANGES: &str = "delay_exchange";

/// What changes when a configuration that was read again takes effect.
#[derive(Debug, Default)]
pub struct Difference {
    /// The changed keys that require a restart.
    pub restart: Vec<String>,
    pub tokens: bool,
    pub delay_exchanges: bool,
    pub log: bool,
    /// The new sections. Each begins without shards.
    pub added_databases: Vec<Database>,
}

impl Difference {
    /// The changes from the configuration `in_force` to the one that was `read`.
    pub fn between(in_force: &Config, read: &Config) -> Self {
        let mut difference = Self::default();
        let (old, new) = (&in_force.values, &read.values);
        for path in old.written.keys().chain(new.written.keys()).collect::<BTreeSet<_>>() {
            let Some(key) = old.key(path).or_else(|| new.key(path)) else { continue };
            if key.path.starts_with(DATABASE) || old.text(key, path) == new.text(key, path) {
                continue;
            }
            match key.path {
                _ if key.path.starts_with(TOKENS) => difference.tokens = true,
                _ if key.path.starts_with(DELAY_EXCHANGES) => difference.delay_exchanges = true,
                "telemetry.log" => difference.log = true,
                _ => difference.restart.push(path.clone()),
            }
        }
        for (changed, list) in [(&mut difference.tokens, TOKENS), (&mut difference.delay_exchanges, DELAY_EXCHANGES)] {
            if *changed && Values::misplaces_a_variable(old, new, list) {
                *changed = false;
                difference.restart.push(list.to_owned());
            }
        }
        difference.compare_databases(in_force, read);
        difference
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        let Self { restart, tokens, delay_exchanges, log, added_databases } = self;
        restart.is_empty() && !tokens && !delay_exchanges && !log && added_databases.is_empty()
    }

    fn compare_databases(&mut self, in_force: &Config, read: &Config) {
        let (old, new) = (&in_force.values, &read.values);
        for database in &in_force.databases {
            let section = format!("{DATABASE}.{}", database.name);
            if read.databases.iter().all(|other| other.name != database.name) {
                self.restart.push(section);
                continue;
            }
            for (key, name) in KEYS.iter().filter_map(|key| Some((key, key.path.strip_prefix("database[].")?))) {
                let path = format!("{section}.{name}");
                if old.text(key, &path) != new.text(key, &path) {
                    self.restart.push(path);
                }
            }
        }
        // The first database holds the queues, the schedules and the tokens.
        let first = |config: &Config| config.databases.first().map(|database| database.name.clone());
        if first(in_force) != first(read) {
            self.restart.push(format!("{DATABASE}[0]"));
        }
        let is_new = |of: &&Database| in_force.databases.iter().all(|other| other.name != of.name);
        for (index, database) in read.databases.iter().enumerate().filter(|(_, of)| is_new(of)) {
            let url = database.url.expose_secret();
            let may_join = database.shards.is_none()
                && in_force.databases.iter().all(|other| other.url.expose_secret() != url)
                && !new.has_variable_for(DATABASE, index);
            if may_join {
                self.added_databases.push(database.clone());
            } else {
                self.restart.push(format!("{DATABASE}.{}", database.name));
            }
        }
    }
}

impl Config {
    /// Takes over what the difference to `read` says without a restart. The rest stays as it is in force.
    pub fn take_over(&mut self, read: &Self, difference: &Difference) {
        if difference.tokens {
            self.auth.token.clone_from(&read.auth.token);
            self.values.take_over(&read.values, TOKENS);
        }
        if difference.delay_exchanges {
            self.delay_exchanges.clone_from(&read.delay_exchanges);
            self.values.take_over(&read.values, DELAY_EXCHANGES);
        }
        if difference.log {
            self.telemetry.log.clone_from(&read.telemetry.log);
            self.values.take_over(&read.values, "telemetry.log");
        }
    }

    /// Adds a database of `read` that has joined the running node.
    pub fn add_database(&mut self, read: &Self, name: &DatabaseName) {
        self.values.take_over(&read.values, &format!("{DATABASE}.{name}."));
        self.databases.extend(read.databases.iter().filter(|database| database.name == *name).cloned());
    }

    /// Whether file and environment say the same as those of `other` did.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

/// Every value as it was written, with its key. The name of a database stands for its number:
/// `database.main.url`, `auth.token[0].name`, `scheduler.batch`.
#[derive(Clone, Default)]
pub(super) struct Values {
    written: BTreeMap<String, (&'static Key, SecretString)>,
    /// The keys that variables have set, with numbers only.
    variables: BTreeSet<String>,
}

impl fmt::Debug for Values {
    /// The typed sections of the configuration show the same values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").finish_non_exhaustive()
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        let texts = |of: &Self| {
            of.written
                .iter()
                .map(|(path, (_, text))| (path.clone(), text.expose_secret().to_owned()))
                .collect::<Vec<_>>()
        };
        self.variables == other.variables && texts(self) == texts(other)
    }
}

impl Values {
    pub(super) fn of(tree: &Tree) -> Self {
        let mut values = Self { variables: tree.variables.keys().cloned().collect(), ..Self::default() };
        values.add_section(&tree.root, "", "");
        values
    }

    fn add_section(&mut self, section: &Dict, path: &str, shape: &str) {
        let below = |of: &str, name: &str| if of.is_empty() { name.to_owned() } else { format!("{of}.{name}") };
        for (name, value) in section {
            self.add(value, &below(path, name), &below(shape, name));
        }
    }

    fn add(&mut self, value: &Value, path: &str, shape: &str) {
        match value {
            Value::Dict(_, section) => self.add_section(section, path, shape),
            Value::Array(_, items) if items.iter().any(|item| item.as_dict().is_some()) => {
                for (index, section) in items.iter().filter_map(Value::as_dict).enumerate() {
                    let path = match section.get("name").and_then(Value::as_str) {
                        Some(name) if shape == DATABASE => format!("{path}.{name}"),
                        None if shape == DATABASE => format!("{path}.main"),
                        _ => format!("{path}[{index}]"),
                    };
                    self.add_section(section, &path, &format!("{shape}[]"));
                }
            }
            value => {
                if let Some(key) = KEYS.iter().find(|key| key.path == shape) {
                    self.written.insert(path.to_owned(), (key, text(key, value).into()));
                }
            }
        }
    }

    /// Whether the file or a variable sets the value at `path`.
    pub(super) fn has(&self, path: &str) -> bool {
        self.written.contains_key(path)
    }

    fn key(&self, path: &str) -> Option<&'static Key> {
        self.written.get(path).map(|(key, _)| *key)
    }

    /// The value in force at `path`: as it was written, or the default.
    fn text(&self, key: &Key, path: &str) -> String {
        match self.written.get(path) {
            Some((_, text)) => text.expose_secret().to_owned(),
            None => key.default.parse::<Value>().map(|value| text(key, &value)).unwrap_or_default(),
        }
    }

    /// Whether a variable sets a key of a section that had another name before. A variable counts sections, so after
    /// a change of the list it would give the secret of one section to another. The environment of a process never
    /// changes, so only a restart can set that right.
    fn misplaces_a_variable(old: &Self, new: &Self, list: &str) -> bool {
        let name = |of: &Self, section: &str| {
            of.written.get(&format!("{section}.name")).map(|(_, name)| name.expose_secret().to_owned())
        };
        new.variables.iter().filter(|key| key.strip_prefix(list).is_some_and(|rest| rest.starts_with('['))).any(|key| {
            let section = key.split_once(']').map_or("", |(section, _)| section);
            let section = format!("{section}]");
            name(old, &section) != name(new, &section)
        })
    }

    fn has_variable_for(&self, list: &str, index: usize) -> bool {
        self.variables.iter().any(|key| key.starts_with(&format!("{list}[{index}].")))
    }

    fn take_over(&mut self, from: &Self, beginning: &str) {
        self.written.retain(|path, _| !path.starts_with(beginning));
        let taken = from.written.iter().filter(|(path, _)| path.starts_with(beginning));
        self.written.extend(taken.map(|(path, value)| (path.clone(), value.clone())));
    }
}

/// A value as text. The file and a variable write the same value in different ways: `20` and `"20"`.
fn text(key: &Key, value: &Value) -> String {
    let plain = match value {
        Value::String(_, text) => text.clone(),
        Value::Array(_, items) => items.iter().map(|item| text(key, item)).collect::<Vec<_>>().join(","),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    match plain.parse::<f64>() {
        Ok(number) if key.default.parse::<f64>().is_ok() => number.to_string(),
        _ => plain,
    }
}

#[cfg(test)]
mod tests;
