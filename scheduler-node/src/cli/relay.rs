//! `duetime relay`: turns a queue's tasks into HTTP calls or runs of a command.

use std::{ffi::OsString, fs, path::PathBuf, time::Duration};

use common::{ids::QueueName, queue};
use ipnet::IpNet;
use reqwest::Url;

use super::{
    config_file::ConfigFile,
    error::Error,
    signals::{STOPPED_HARD, stop_and_cut_off_on_signals},
};
use crate::{
    config::{self, Config},
    relay::{self, Callback, Command, Identity, Secret, Settings, Target},
    settings, telemetry,
};

/// The queue, and what to do with each of its tasks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Queue to take tasks from.
    #[arg(long, value_parser = name)]
    queue: QueueName,
    /// Address to POST each task's payload to. 2xx is a success, 410 discards the task (with `settle = result`),
    /// anything else is a failed attempt.
    #[arg(long, value_name = "URL", value_parser = target, required_unless_present = "command", conflicts_with = "command")]
    to: Option<Url>,
    /// File with the secret that signs the calls (Standard Webhooks), `whsec_…`; several, one a line, during a
    /// rotation.
    #[arg(long, value_name = "FILE", requires = "to")]
    secret_file: Option<PathBuf>,
    /// Network that calls may reach although it is not public; can be given again.
    #[arg(long, value_name = "CIDR", requires = "to")]
    allow_network: Vec<IpNet>,
    /// Program to run for each task, with the payload on its standard input. Exit code 0 is a success, 65 discards
    /// the task (with `settle = result`), anything else is a failed attempt.
    #[arg(long, value_name = "PROGRAM")]
    command: Option<PathBuf>,
    /// User to run the program as, by name or number; it must not be able to read the relay's files. Needs root, or
    /// CAP_SETUID and CAP_SETGID.
    #[arg(long, value_name = "USER", requires = "command")]
    user: Option<String>,
    /// Group to run the program as; default: the user's own.
    #[arg(long, value_name = "GROUP", requires = "user")]
    group: Option<String>,
    /// Variable of the relay's environment to pass to the program; can be given again. Default: PATH, HOME, LANG,
    /// LC_ALL, TZ and TMPDIR.
    #[arg(long, value_name = "NAME", requires = "command")]
    env: Vec<String>,
    /// Arguments of the program.
    #[arg(last = true, requires = "command")]
    args: Vec<OsString>,
    /// Most calls at one time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// How long one call may take.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    timeout_ms: u64,
    /// Interval of the heartbeats while a call runs; less than the queue's `timeout_ms`.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    heartbeat_ms: u64,
    /// Failures in a row (no answer, 429 or 5xx) after which the target gets no calls for a while.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    break_after: u32,
    /// How long SIGTERM waits for calls in flight.
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    grace_ms: u64,
    #[command(flatten)]
    file: ConfigFile,
}

fn name(text: &str) -> Result<QueueName, String> {
    queue::check_name(text).map_err(|error| error.detail)?;
    Ok(QueueName::new(text))
}

fn target(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if ["http", "https"].contains(&url.scheme()) && url.has_host() {
        return Ok(url);
    }
    Err("it must begin with http:// or https://".to_owned())
}

impl Args {
    fn target(&self) -> Result<Target, Error> {
        let timeout = Duration::from_millis(self.timeout_ms);
        match (&self.command, &self.to) {
            (Some(program), _) => Ok(Target::Command(Command {
                program: program.clone(),
                args: self.args.clone(),
                environment: self.env.clone(),
                identity: self.identity()?,
                timeout,
            })),
            (None, Some(to)) => {
                let made = Callback::new(to.clone(), self.secrets()?, self.allow_network.clone(), timeout);
                made.map(Target::Callback).map_err(|why| Error::Usage(format!("`--to`: {why}")))
            }
            (None, None) => Err(Error::Usage("give `--to` or `--command`".to_owned())),
        }
    }

    fn identity(&self) -> Result<Option<Identity>, Error> {
        let found = self.user.as_ref().map(|user| Identity::find(user, self.group.as_deref())).transpose();
        found.map_err(|why| Error::Usage(format!("`--user`: {why}")))
    }

    fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let Some(file) = &self.secret_file else { return Ok(Vec::new()) };
        let refuse = |why: String| Error::Usage(format!("`--secret-file {}`: {why}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let secrets: Vec<Secret> =
            lines.map(Secret::parse).collect::<Result<_, _>>().map_err(|why| refuse(format!("a secret {why}")))?;
        if secrets.is_empty() { Err(refuse("it is empty".to_owned())) } else { Ok(secrets) }
    }
}

/// Runs until SIGTERM or SIGINT; a second signal ends it with its calls.
pub async fn relay(args: &Args) -> Result<(), Error> {
    let (amqp, telemetry) = Config::load_for_consumer(args.file.config.as_deref()).map_err(Error::Config)?;
    let of = Settings {
        amqp: settings::login(&amqp),
        queue: args.queue.clone(),
        target: args.target()?,
        concurrency: args.concurrency,
        break_after: args.break_after,
        heartbeat: Duration::from_millis(args.heartbeat_ms),
        grace: Duration::from_millis(args.grace_ms),
    };
    telemetry::start(&telemetry, config::Node::default().name.as_str())?;
    if let Some(warning) = amqp.warning() {
        tracing::warn!("{warning}");
    }
    let (stop, cut_off) = stop_and_cut_off_on_signals()?;
    if let Err(error) = relay::close_to_others() {
        tracing::warn!(%error, "commands of the same user can read this process");
    }
    relay::run(of, stop, cut_off.clone()).await;
    if cut_off.is_cancelled() {
        // The runtime would wait for the look-up of a name under way.
        std::process::exit(STOPPED_HARD);
    }
    Ok(())
}
