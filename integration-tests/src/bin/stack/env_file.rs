//! `.local/env`: the variables by which a shell finds the stack.

use std::path::Path;

use anyhow::Result;
use integration_tests::sandbox::write_whole;

/// The addresses of everything.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub urls: Vec<String>,
    pub token: String,
    pub pids: Vec<u32>,
    pub amqp_url: String,
    pub database_urls: Vec<String>,
    pub etcd_endpoints: Vec<String>,
    pub delay_exchange: String,
    pub delay_target: String,
}

impl Addresses {
    /// Writes the file for `source`; it holds secrets, so only its owner can read it.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        let lines = [
            ("DUETIME_URLS", self.urls.join(",")),
            ("DUETIME_TOKEN", self.token.clone()),
            ("DUETIME_PIDS", pids.join(",")),
            ("AMQP_URL", self.amqp_url.clone()),
            ("DATABASE_URLS", self.database_urls.join(",")),
            ("ETCD_ENDPOINTS", self.etcd_endpoints.join(",")),
            ("DUETIME_DELAY_EXCHANGE", self.delay_exchange.clone()),
            ("DUETIME_DELAY_TARGET", self.delay_target.clone()),
        ];
        // None of the values holds a quote: they are URLs, names, numbers and hexadecimal digits.
        let text: String = lines.into_iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
        write_whole(file, &text, 0o600, |_| Ok(()))
    }
}
