//! The nodes' addresses and the token that a command sends.

use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use clap::Args;
use reqwest::{Url, header::HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::{client::Client, error::Error, moment, output::warn};

/// The address that a node listens on by default.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The options that say how a command reaches a node.
#[derive(Debug, Args)]
pub(super) struct Access {
    /// Address of a node; several with commas, or given again: the next is tried when one cannot be reached [default:
    /// http://127.0.0.1:8080] [env: also DUETIME_URLS].
    #[arg(long, value_name = "URL", env = "DUETIME_URL", value_delimiter = ',', help_heading = "Connection")]
    url: Vec<String>,
    /// The same addresses under the name that `make up` writes; `--url` takes precedence.
    #[arg(long, value_name = "URL", env = "DUETIME_URLS", value_delimiter = ',', hide = true)]
    urls: Vec<String>,
    /// Token to authenticate with. Other users of this machine can read it off the command line: prefer the variable
    /// or a file.
    #[arg(long, env = "DUETIME_TOKEN", hide_env_values = true, value_parser = secret, help_heading = "Connection")]
    token: Option<SecretString>,
    /// File with the token; takes precedence over `--token`.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    token_file: Option<PathBuf>,
    /// How long to wait for an answer.
    #[arg(long, value_name = "TIME", value_parser = moment::duration, default_value = "30s", help_heading = "Connection")]
    timeout: Duration,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(SecretString::from(text))
}

impl Access {
    /// Returns a client for these nodes. Warns when the token would cross the network in the clear.
    pub(super) fn client(&self) -> Result<Client, Error> {
        self.client_within(self.timeout)
    }

    /// Returns the same client with a timeout of at most `longest`.
    pub(super) fn client_within(&self, longest: Duration) -> Result<Client, Error> {
        let nodes = self.nodes()?;
        let authorization = self.authorization()?;
        if authorization.is_some() {
            for node in nodes.iter().filter(|node| is_readable_on_the_way(node)) {
                warn(format!(
                    "the token is sent to {node} unencrypted, and others on the network can read it; use https"
                ));
            }
        }
        Client::new(nodes, authorization, self.timeout.min(longest)).map_err(Error::Client)
    }

    fn nodes(&self) -> Result<Vec<Url>, Error> {
        let given = |urls: &[String]| -> Vec<String> {
            urls.iter().map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect()
        };
        let first = [given(&self.url), given(&self.urls)].into_iter().find(|urls| !urls.is_empty());
        first.unwrap_or_else(|| vec![DEFAULT_URL.to_owned()]).iter().map(|url| node(url)).collect()
    }

    /// The `Authorization` header. It is marked sensitive, so debug output of headers hides it.
    fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let token = match &self.token_file {
            Some(file) => {
                let read = fs::read_to_string(file);
                let refuse = |error| Error::Usage(format!("`--token-file {}` cannot be read: {error}", file.display()));
                Some(SecretString::from(read.map_err(refuse)?))
            }
            None => self.token.clone(),
        };
        let Some(token) = token.as_ref().map(|token| token.expose_secret().trim()).filter(|token| !token.is_empty())
        else {
            return Ok(None);
        };
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Error::Usage("the token has characters that a token never has; check its source".into()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

/// Parses an address that requests can be sent to.
pub(super) fn node(text: &str) -> Result<Url, Error> {
    let refuse = |why: &str| Err(Error::Usage(format!("`--url`: {why}; write it like {DEFAULT_URL}")));
    match Url::parse(text) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            refuse("an address must not hold credentials; use `--token`")
        }
        Ok(url) if !["http", "https"].contains(&url.scheme()) || !url.has_host() => {
            refuse(&format!("{text} does not begin with http:// or https://"))
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            refuse("an address must not have a query or a fragment")
        }
        Ok(url) => Ok(url),
        Err(error) => refuse(&format!("`{text}` is not an address: {error}")),
    }
}

/// Whether a request to this address crosses the network unencrypted.
fn is_readable_on_the_way(node: &Url) -> bool {
    node.scheme() == "http" && !is_here(node)
}

/// Whether both addresses are on one host and are spoken to alike. All of loopback is one host.
pub(super) fn is_same_host(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme() && (one.host() == other.host() || is_here(one) && is_here(other))
}

/// Whether a request to this address stays on this machine.
fn is_here(node: &Url) -> bool {
    let host = node.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Asking {
        #[command(flatten)]
        access: Access,
    }

    fn access(words: &[&str]) -> Access {
        Asking::try_parse_from([&["duetime"], words].concat()).expect("understood").access
    }

    #[test]
    fn addresses_come_with_commas_or_again_and_urls_is_the_other_name() {
        let shown = |words: &[&str]| -> Vec<String> {
            access(words).nodes().expect("addresses").iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown(&["--url", "http://a:1,http://b:2", "--url", "https://c/x"]),
            ["http://a:1/", "http://b:2/", "https://c/x"]
        );
        assert_eq!(shown(&["--urls", "http://a:1,,http://b:2"]), ["http://a:1/", "http://b:2/"]);
        assert_eq!(shown(&["--url", "http://a:1", "--urls", "http://b:2"]), ["http://a:1/"]);
        assert_eq!(shown(&["--url", "", "--urls", ""]), ["http://127.0.0.1:8080/"]);
    }

    #[test]
    fn what_is_no_address_is_a_mistake_of_the_caller() {
        for url in ["ftp://a", "a:8080", "//a", "http://", "http://me:secret@a", "http://a?x=1"] {
            let error = access(&["--url", url]).nodes().expect_err(url);
            assert_eq!(error.exit_code(), 2, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_token_is_shown_nowhere() {
        let access = access(&["--token", "hush"]);
        assert!(!format!("{access:?}").contains("hush"));
        let header = access.authorization().expect("a token").expect("given");
        assert_eq!(header.as_bytes(), b"Bearer hush");
        assert!(!format!("{header:?}").contains("hush"));
    }

    #[test]
    fn a_token_file_goes_before_a_token_and_an_empty_token_is_none() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "from-file\n").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let header = access(&["--token", "hush", "--token-file", path]).authorization().expect("read");
        assert_eq!(header.expect("given").as_bytes(), b"Bearer from-file");
        assert!(access(&["--token", " "]).authorization().expect("none").is_none());
        assert_eq!(access(&["--token-file", "/nowhere/token"]).authorization().expect_err("refused").exit_code(), 2);
    }

    #[test]
    fn only_plain_http_to_another_machine_can_be_read_on_the_way() {
        let readable = |url: &str| is_readable_on_the_way(&node(url).expect("an address"));
        assert!(readable("http://10.0.0.1:8080") && readable("http://localhost.example.org"));
        for url in ["http://127.0.0.1:1", "http://127.9.9.9", "http://localhost", "http://[::1]:1", "https://10.0.0.1"]
        {
            assert!(!readable(url), "{url}");
        }
    }

    #[test]
    fn ports_and_the_names_of_loopback_are_of_one_host() {
        let same =
            |one: &str, other: &str| is_same_host(&node(one).expect("an address"), &node(other).expect("an address"));
        assert!(same("https://a.example.org", "https://A.example.org:8080/x"));
        assert!(same("http://localhost:1", "http://127.0.0.1:2") && same("http://[::1]:1", "http://127.0.0.1:2"));
        for other in ["https://b.example.org", "http://a.example.org", "https://example.org", "https://127.0.0.1"] {
            assert!(!same("https://a.example.org", other), "{other}");
        }
    }
}
