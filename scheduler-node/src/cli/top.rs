//! `duetime top`: a live view of the cluster, one picture a second.

mod figures;
mod picture;
mod screen;

use std::{
    collections::{BTreeMap, VecDeque},
    io::IsTerminal,
    time::{Duration, Instant},
};

use common::wire::ClusterReport;
use futures::future::join_all;
use reqwest::Url;

use self::{
    figures::{Figures, Growth},
    picture::Picture,
    screen::Screen,
};
use super::{
    access::{is_same_host, node},
    client::{Client, Request},
    error::Error,
    invocation::Invocation,
    output::{Form, printable, say},
};
use crate::clock;

/// How often a picture is taken.
const EVERY: Duration = Duration::from_secs(1);
/// Rates and lateness cover this many pictures: few enough to be current, many enough to be steady.
const LOOKS: usize = 6;
/// A node that has not answered within this time is shown without figures; the others must not wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How to watch.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one picture, of the second that follows, and end.
    #[arg(long)]
    once: bool,
}

/// One sample of every node.
#[derive(Debug)]
struct Look {
    taken: Instant,
    /// Figures by the node's name.
    figures: BTreeMap<String, Figures>,
}

/// Takes the samples.
#[derive(Debug)]
struct Watch {
    client: Client,
    /// The node's name for each address, when several were given.
    names: BTreeMap<Url, String>,
    looks: VecDeque<Look>,
    /// Why some nodes have no figures.
    notes: Vec<String>,
}

pub(super) async fn top(invocation: &Invocation<Args>) -> Result<(), Error> {
    let client = invocation.access.client_within(ANSWER_WITHIN)?;
    let mut watch = Watch { client, names: BTreeMap::new(), looks: VecDeque::new(), notes: Vec::new() };
    match invocation.form() {
        form if invocation.args.once => {
            watch.look().await?;
            tokio::time::sleep(EVERY).await;
            let picture = watch.look().await?;
            match form {
                Form::Text => say(picture.text()),
                Form::Json | Form::Jsonl => say(picture.json()?),
            }
            Ok(())
        }
        Form::Text if !std::io::stdout().is_terminal() => {
            Err(Error::Usage("standard output is not a terminal: use --once for one picture, or --output jsonl".into()))
        }
        Form::Text => live(watch).await,
        Form::Json => Err(Error::Usage(
            "an endless series of pictures is not one JSON document: use --output jsonl, or --once".into(),
        )),
        Form::Jsonl => stream(watch).await,
    }
}

async fn stream(mut watch: Watch) -> Result<(), Error> {
    let mut ticks = tokio::time::interval(EVERY);
    watch.look().await?;
    ticks.tick().await;
    loop {
        ticks.tick().await;
        say(watch.look().await?.json()?);
    }
}

/// Draws until the person quits. Keeps trying a cluster that cannot be reached.
async fn live(mut watch: Watch) -> Result<(), Error> {
    let mut view = View { picture: watch.look().await?.text(), trouble: None };
    let mut screen = Screen::open().map_err(Error::Terminal)?;
    loop {
        screen.draw(&view.text()).map_err(Error::Terminal)?;
        if screen.ends_within(EVERY).await.map_err(Error::Terminal)? {
            return Ok(());
        }
        view.note(watch.look().await.map(|picture| picture.text()));
    }
}

/// What the screen shows.
#[derive(Debug)]
struct View {
    /// The last picture that could be taken.
    picture: String,
    /// Why there has been none since.
    trouble: Option<String>,
}

impl View {
    fn note(&mut self, look: Result<String, Error>) {
        match look {
            Ok(picture) => *self = Self { picture, trouble: None },
            Err(error) => self.trouble = Some(printable(&error.to_string())),
        }
    }

    /// The trouble stands above the picture.
    fn text(&self) -> String {
        match &self.trouble {
            Some(trouble) => format!("{trouble}\n\n{}", self.picture),
            None => self.picture.clone(),
        }
    }
}

impl Watch {
    async fn look(&mut self) -> Result<Picture, Error> {
        self.notes.clear();
        let report: ClusterReport = self.client.send(&Request::get(&["v1", "cluster"])).await?.read()?;
        let nodes = self.nodes(&report).await;
        let answers = join_all(nodes.iter().map(|(_, url)| figures_of(&self.client, url))).await;
        let mut figures = BTreeMap::new();
        for ((name, _), answer) in nodes.into_iter().zip(answers) {
            match answer {
                Ok(found) => drop(figures.insert(name, found)),
                Err(error) => self.notes.push(format!("node {name} has no figures: {error}")),
            }
        }
        if self.looks.len() == LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back(Look { taken: Instant::now(), figures });
        let growth = growth(&self.looks);
        let newest = self.looks.back().map(|look| &look.figures);
        Ok(Picture::of(clock::now(), &report, newest.unwrap_or(&BTreeMap::new()), &growth, &self.notes))
    }

    /// The nodes to sample. Several addresses given are the nodes; for a single one, the cluster's report names the
    /// nodes' addresses.
    async fn nodes(&mut self, report: &ClusterReport) -> Vec<(String, Url)> {
        if self.client.nodes().len() > 1 {
            return self.given().await;
        }
        let mut nodes = Vec::new();
        for member in &report.nodes {
            match member.url.as_deref().map(node) {
                Some(Ok(url)) if self.may_know_the_token(&url) => nodes.push((member.name.to_string(), url)),
                Some(Ok(url)) => self.notes.push(format!(
                    "node {} has no figures: its address {url} was not given, so it does not get the token; give it \
                     with --url",
                    member.name
                )),
                _ => self.notes.push(format!("node {} advertises no usable address", member.name)),
            }
        }
        nodes
    }

    /// Whether the token may be sent to an address that the cluster's report names. A node's record in etcd holds it,
    /// so only the hosts that the caller gave may: another one could be that of a thief, with TLS or without.
    fn may_know_the_token(&self, node: &Url) -> bool {
        !self.client.has_token() || self.client.nodes().iter().any(|given| is_same_host(given, node))
    }

    async fn given(&mut self) -> Vec<(String, Url)> {
        let unknown = self.client.nodes().iter().filter(|url| !self.names.contains_key(url));
        let request = Request::get(&["v1", "cluster"]);
        let reports = unknown.map(async |url| {
            let report = self.client.send_to(url, &request).await.and_then(|answer| answer.read::<ClusterReport>());
            (url.clone(), report)
        });
        for (url, report) in join_all(reports).await {
            match report {
                Ok(report) => drop(self.names.insert(url, report.node.name.to_string())),
                Err(failure) => self.notes.push(failure.to_string()),
            }
        }
        self.names.iter().map(|(url, name)| (name.clone(), url.clone())).collect()
    }
}

async fn figures_of(client: &Client, url: &Url) -> Result<Figures, Error> {
    Ok(Figures::read(&client.send_to(url, &Request::get(&["metrics"])).await?.text))
}

/// The growth on all nodes since each node's oldest sample.
fn growth(looks: &VecDeque<Look>) -> Growth {
    let (Some(oldest), Some(newest)) = (looks.front(), looks.back()) else { return Growth::default() };
    let mut growth = Growth::over(newest.taken.duration_since(oldest.taken));
    for (name, figures) in &newest.figures {
        if let Some(earlier) = looks.iter().find_map(|look| look.figures.get(name)) {
            growth.add(earlier, figures);
        }
    }
    growth
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn may_know_the_token(token: Option<HeaderValue>, given: &str, named: &str) -> bool {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let address = |url: &str| node(url).expect("an address");
        let client = Client::new(vec![address(given)], token, ANSWER_WITHIN).expect("a client");
        let watch = Watch { client, names: BTreeMap::new(), looks: VecDeque::new(), notes: Vec::new() };
        watch.may_know_the_token(&address(named))
    }

    #[test]
    fn the_screen_shows_the_newest_trouble_above_the_last_picture() {
        let mut view = View { picture: "first".to_owned(), trouble: None };
        assert_eq!(view.text(), "first");
        for _ in 0..2 {
            view.note(Err(Error::Usage("no node answers".to_owned())));
            assert_eq!(view.text(), "no node answers\n\nfirst");
        }
        view.note(Err(Error::Usage("no permission".to_owned())));
        assert_eq!(view.text(), "no permission\n\nfirst");
        view.note(Ok("second".to_owned()));
        assert_eq!(view.text(), "second");
    }

    #[test]
    fn the_token_goes_to_the_hosts_that_were_given_only() {
        let token = || Some(HeaderValue::from_static("Bearer hush"));
        assert!(may_know_the_token(token(), "http://localhost:8080", "http://127.0.0.1:8081"));
        assert!(may_know_the_token(token(), "http://node-1.example.org", "http://node-1.example.org:8080"));
        for (given, named) in [
            ("http://10.0.0.1:8080", "https://thief.example.org"),
            ("http://10.0.0.1:8080", "http://127.0.0.1:1"),
            ("http://localhost:8080", "http://10.0.0.1:8080"),
            ("http://10.0.0.1:8080", "http://10.0.0.2:8080"),
        ] {
            assert!(!may_know_the_token(token(), given, named), "{given} {named}");
            assert!(may_know_the_token(None, given, named), "{given} {named}");
        }
    }
}
