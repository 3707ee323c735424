//! Keys and values before they have types: the file's content with the environment on top.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use figment::{
    Profile, Provider,
    providers::{Format, Toml},
    value::{Dict, Value},
};

use super::{complaint::Complaints, error::Error, keys};

const PREFIX: &str = "DUETIME_";

/// The values as written, each with the variable that set it, if one did.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) root: Dict,
    pub(super) variables: BTreeMap<String, String>,
}

impl Tree {
    /// The content of the file, if there is one, with `environment` taking precedence.
    pub(super) fn of(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        complaints: &mut Complaints,
    ) -> Result<Self, Error> {
        let tree = file.map_or_else(|| Ok(Self::default()), Self::of_file)?;
        Ok(tree.overlaid_with(environment, complaints))
    }

    /// The same of `sections` alone. Neither secrets nor variables of another section are read. A variable of an
    /// unknown section is a mistake here too.
    pub(super) fn of_sections(
        sections: &[&str],
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        complaints: &mut Complaints,
    ) -> Result<Self, Error> {
        let mut tree = file.map_or_else(|| Ok(Self::default()), Self::of_file)?;
        tree.root.retain(|section, _| sections.contains(&section.as_str()));
        let known: BTreeSet<&str> = keys::KEYS.iter().map(|key| section_of(key.path)).collect();
        let environment = environment.into_iter().filter(|(variable, _)| {
            let Some((first, _)) = variable.strip_prefix(PREFIX).and_then(|name| name.split_once("__")) else {
                return true;
            };
            let first = first.to_lowercase();
            sections.contains(&first.as_str()) || !known.contains(first.as_str())
        });
        Ok(tree.overlaid_with(environment, complaints))
    }

    fn overlaid_with(
        mut self,
        environment: impl IntoIterator<Item = (String, String)>,
        complaints: &mut Complaints,
    ) -> Self {
        self.overlay(environment, complaints);
        self.complete(complaints);
        self
    }

    /// Reads the secrets from the files that the configuration file names, unless a variable has set them. Adds a
    /// section that must exist, so that its missing keys are named.
    pub(super) fn complete(&mut self, complaints: &mut Complaints) {
        for secret in keys::SECRETS {
            self.take_secret_file(secret, complaints);
        }
        self.root.entry("amqp".to_owned()).or_insert_with(|| Value::from(Dict::new()));
    }

    fn of_file(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.into(), source })?;
        Self::of_text(path, &text)
    }

    /// Parses `text`, the content of the file at `path`.
    pub(super) fn of_text(path: &Path, text: &str) -> Result<Self, Error> {
        let parsed = Toml::string(text).data();
        let mut profiles =
            parsed.map_err(|error| Error::Syntax { path: path.into(), reason: place_and_reason(&error) })?;
        Ok(Self { root: profiles.remove(&Profile::Default).unwrap_or_default(), ..Self::default() })
    }

    /// Lays the environment over the file. Variables without a section (`DUETIME_TOKEN`) belong to other programs and
    /// are left alone, unless they are a key whose two underscores became one.
    pub(super) fn overlay(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
        complaints: &mut Complaints,
    ) {
        let mut standard = BTreeMap::new();
        let mut own = Vec::new();
        for (variable, text) in environment {
            if variable.starts_with("OTEL_") && !text.is_empty() {
                standard.insert(variable, text);
                continue;
            }
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if !name.contains("__") {
                if let Some(meant) = with_single_underscores(name) {
                    complaints.add(variable, format!("sets nothing; write {meant}, with two underscores"));
                }
                continue;
            }
            let steps: Vec<String> = name.split("__").map(str::to_lowercase).collect();
            if !keys::KEYS.iter().any(|key| key.path == shape(&steps)) {
                complaints.add(variable, "is set but names no key; `duetime node --help` lists them");
                continue;
            }
            own.push((variable, steps, text));
        }
        // An environment has no order, but a list grows from its first section on.
        own.sort_by_cached_key(|(_, steps, _)| in_order(steps));
        for (variable, steps, text) in own {
            self.put(variable, &steps, text, complaints);
        }
        self.fill(standard, complaints);
    }

    /// Fills keys that are still unset from OpenTelemetry's standard variables.
    fn fill(&mut self, mut standard: BTreeMap<String, String>, complaints: &mut Complaints) {
        // Other samplers have other arguments.
        match standard.get("OTEL_TRACES_SAMPLER").map(String::as_str) {
            Some("parentbased_traceidratio") => {}
            Some("parentbased_always_on") => {
                drop(standard.insert("OTEL_TRACES_SAMPLER_ARG".to_owned(), "1".to_owned()))
            }
            _ => drop(standard.remove("OTEL_TRACES_SAMPLER_ARG")),
        }
        for (variable, key) in keys::STANDARD {
            let steps: Vec<String> = key.split('.').map(str::to_owned).collect();
            if find(&mut self.root, &steps).is_none()
                && let Some(text) = standard.remove(*variable)
            {
                self.put((*variable).to_owned(), &steps, text, complaints);
            }
        }
    }

    fn put(&mut self, variable: String, steps: &[String], text: String, complaints: &mut Complaints) {
        let Some((name, way)) = steps.split_last() else { return };
        let secret =
            name.strip_suffix("_file").filter(|stem| keys::SECRETS.contains(&shape(&with(way, stem)).as_str()));
        let (name, text) = match secret {
            Some(stem) => match read_secret(&text) {
                Ok(secret) => (stem, secret),
                Err(problem) => return complaints.add(variable, problem),
            },
            None => (name.as_str(), text),
        };
        let steps = with(way, name);
        let key = key_path(&steps);
        if let Some(other) = self.variables.get(&key) {
            return complaints.add(variable, format!("is set, but so is {other}; set one of them"));
        }
        if keys::SECRETS.contains(&shape(&steps).as_str()) {
            self.remove(&with(way, &format!("{name}_file")));
        }
        match insert(&mut self.root, &steps, Value::from(text)) {
            Ok(()) => drop(self.variables.insert(key, variable)),
            Err(problem) => complaints.add(variable, problem),
        }
    }

    /// Sets `<secret>` to the content of the file that `<secret>_file` names.
    fn take_secret_file(&mut self, secret: &str, complaints: &mut Complaints) {
        let Some((section, name)) = secret.rsplit_once('.') else { return };
        let way: Vec<String> = section.trim_end_matches("[]").split('.').map(str::to_owned).collect();
        match (section.strip_suffix("[]"), find(&mut self.root, &way)) {
            (None, Some(Value::Dict(_, dict))) => take_from(dict, section, name, complaints),
            (Some(section), Some(Value::Array(_, items))) => {
                for (index, item) in items.iter_mut().enumerate() {
                    if let Value::Dict(_, dict) = item {
                        take_from(dict, &format!("{section}[{index}]"), name, complaints);
                    }
                }
            }
            _ => {}
        }
    }

    /// The texts that are or contain a URL, the longest first.
    pub(super) fn urls(&self) -> Vec<String> {
        let mut urls = Vec::new();
        self.root.values().for_each(|value| add_urls(value, &mut urls));
        urls.sort_by_key(|url| Reverse(url.len()));
        urls
    }

    /// Removes the value at `path`, so that the rest can be read without it.
    pub(super) fn remove(&mut self, path: &[String]) {
        let Some((name, way)) = path.split_last() else { return };
        if let Some(Value::Dict(_, dict)) = find(&mut self.root, way) {
            dict.remove(name);
        } else if way.is_empty() {
            self.root.remove(name);
        }
    }

    /// Puts a placeholder for a missing required value, so that the rest can be read.
    pub(super) fn stand_in(&mut self, path: &[String]) {
        let text = if path.last().is_some_and(|name| name == "role") { "viewer" } else { "" };
        // If there is no place for it, reading stops at the same key again and gives up.
        let _ = insert(&mut self.root, path, Value::from(text));
    }
}

fn take_from(dict: &mut Dict, section: &str, name: &str, complaints: &mut Complaints) {
    let Some(file) = dict.remove(&format!("{name}_file")) else { return };
    let key = format!("{section}.{name}_file");
    if dict.contains_key(name) {
        return complaints.add(key, format!("is set, but so is {section}.{name}; set one of them"));
    }
    let Some(path) = file.as_str() else {
        return complaints.add(key, "must be text: the path of a file");
    };
    match read_secret(path) {
        Ok(secret) => drop(dict.insert(name.to_owned(), Value::from(secret))),
        Err(problem) => complaints.add(key, problem),
    }
}

/// Reads a secret from its file, without the line end that editors add.
fn read_secret(path: &str) -> Result<String, String> {
    // A URL in the place of a path may be the secret itself.
    let shown = if path.contains("://") { "a URL instead of a path" } else { path };
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() { Err(format!("names {shown}, which is empty")) } else { Ok(secret.to_owned()) }
}

/// Adds the texts in `value` that contain a URL, and the parts between commas that do.
fn add_urls(value: &Value, urls: &mut Vec<String>) {
    // A scheme alone holds no secret, and many sentences name one.
    let is_url = |text: &&str| text.split_once("://").is_some_and(|(_, rest)| !rest.is_empty());
    match value {
        Value::String(_, text) => {
            let parts = text.split(',').map(str::trim).chain([text.as_str()]);
            urls.extend(parts.filter(is_url).map(str::to_owned));
        }
        Value::Dict(_, dict) => dict.values().for_each(|value| add_urls(value, urls)),
        Value::Array(_, items) => items.iter().for_each(|value| add_urls(value, urls)),
        _ => {}
    }
}

/// Sorts keys so that a number comes before all larger ones, `2` before `10`.
fn in_order(steps: &[String]) -> Vec<(Option<usize>, String)> {
    steps.iter().map(|step| (step.parse().ok(), step.clone())).collect()
}

/// `database`, `0`, `url` as the table of keys spells it: `database[].url`.
fn shape(steps: &[String]) -> String {
    join(steps, |_| "[]".to_owned())
}

/// The section of a key: `database` of `database[].url`.
fn section_of(key: &str) -> &str {
    key.split(['.', '[']).next().unwrap_or(key)
}

/// `database`, `0`, `url` as a person writes it: `database[0].url`.
pub(super) fn key_path(steps: &[String]) -> String {
    join(steps, |index| format!("[{index}]"))
}

fn join(steps: &[String], index: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for step in steps {
        if step.parse::<usize>().is_ok() {
            text.push_str(&index(step));
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(step);
        }
    }
    text
}

/// The variable that is meant by `name`, one without its prefix, if each dot of a key became one underscore.
fn with_single_underscores(name: &str) -> Option<String> {
    let number = name.split('_').find(|step| step.parse::<usize>().is_ok()).unwrap_or("0");
    let spelled = |path: &str, dot: &str| path.replace("[]", &format!("{dot}{number}")).replace('.', dot);
    let key = keys::KEYS.iter().find(|key| spelled(key.path, "_").eq_ignore_ascii_case(name))?;
    Some(format!("{PREFIX}{}", spelled(key.path, "__").to_uppercase()))
}

fn with(way: &[String], name: &str) -> Vec<String> {
    way.iter().cloned().chain([name.to_owned()]).collect()
}

fn find<'a>(root: &'a mut Dict, way: &[String]) -> Option<&'a mut Value> {
    let (first, rest) = way.split_first()?;
    rest.iter().try_fold(root.get_mut(first)?, |value, step| match value {
        Value::Dict(_, dict) => dict.get_mut(step),
        Value::Array(_, items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Puts `leaf` at the path `steps` and creates the sections on the way. A number is an index into a list: of an
/// existing element, or of the next one.
fn insert(root: &mut Dict, steps: &[String], leaf: Value) -> Result<(), String> {
    let Some((first, rest)) = steps.split_first() else { return Ok(()) };
    let Some(next) = rest.first() else {
        root.insert(first.clone(), leaf);
        return Ok(());
    };
    let Ok(index) = next.parse::<usize>() else {
        return match root.entry(first.clone()).or_insert_with(|| Value::from(Dict::new())) {
            Value::Dict(_, dict) => insert(dict, rest, leaf),
            _ => Err(format!("cannot be set: the file does not have `{first}` as a section")),
        };
    };
    let Value::Array(_, items) = root.entry(first.clone()).or_insert_with(|| Value::from(Vec::<Value>::new())) else {
        return Err(format!("cannot be set: the file does not have `{first}` as a list, [[{first}]]"));
    };
    if index > items.len() {
        return Err(format!("counts from 0 without a gap, but number {} is missing", items.len()));
    }
    if index == items.len() {
        items.push(Value::from(Dict::new()));
    }
    match &mut items[index] {
        Value::Dict(_, dict) => insert(dict, &rest[1..], leaf),
        _ => Err(format!("cannot be set: the file does not have `{first}` as a list of sections, [[{first}]]")),
    }
}

/// The position and the reason of a syntax error. The parser also quotes the line, which may hold a secret, so that
/// part is dropped.
fn place_and_reason(error: &figment::Error) -> String {
    let text = error.kind.to_string();
    let kept = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.contains('|'));
    kept.collect::<Vec<_>>().join(": ")
}
