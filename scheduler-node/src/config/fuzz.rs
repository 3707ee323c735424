//! Fuzz targets of the configuration.

use std::path::Path;

use super::{Complaints, Config, Link, oidc, tree::Tree};

/// Separates the file from the environment, which has one `NAME=value` a line.
const ENVIRONMENT: &str = "\n---\n";

/// The node reads or refuses a configuration, and its summary for the log is one line.
pub fn config(text: &str) {
    // Keys that name a file of a secret really open it, and a device or a pipe never ends.
    let opens_files = ["_file", "\\u"].iter().any(|part| text.to_lowercase().contains(part));
    if opens_files {
        return;
    }
    let (file, environment) = text.split_once(ENVIRONMENT).unwrap_or((text, ""));
    let mut complaints = Complaints::default();
    let Ok(mut tree) = Tree::of_text(Path::new("fuzz.toml"), file) else { return };
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    tree.overlay(variables.map(|(name, value)| (name.to_owned(), value.to_owned())), &mut complaints);
    tree.complete(&mut complaints);
    match Config::of_tree(tree, complaints) {
        Ok(config) => {
            assert!(config.first_shard_count() >= 1 && !config.redacted().chars().any(char::is_control));
            config.warnings();
        }
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
    }
}

/// A URL as a log shows it parses as the same URL without its password.
pub fn link(url: &str) {
    oidc::is_safe(url);
    Link::fault(url, &["amqp", "amqps", "http", "https", "postgres"]);
    if let Some(link) = Link::parse(url) {
        link.is_loopback();
        let shown = Link::parse(&link.to_string()).expect("a link is shown as a URL");
        assert_eq!(shown, Link { has_password: false, ..link });
    }
}
