//! `[node]`: this node's identity.

use common::ids::NodeName;
use serde::Deserialize;

use super::complaint::Complaints;

/// This node's identity within the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// Stays the same over restarts and differs from every other node's. Default: the host's name.
    pub name: NodeName,
}

impl Default for Node {
    fn default() -> Self {
        Self { name: NodeName::new(host_name()) }
    }
}

impl Node {
    pub(super) fn check(&self, complaints: &mut Complaints) {
        complaints.unless(
            is_plain_name(self.name.as_str()),
            "node.name",
            format!("is {:?}; it must be 1 to 64 characters from A-Z a-z 0-9 . _ -", self.name.as_str()),
        );
    }
}

/// Whether `text` needs no escaping in a key of etcd, a label of a metric and a log line.
pub(super) fn is_plain_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Empty when the host's name is unknown: then `node.name` is required.
fn host_name() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
