//! `duetime`: parses the command line, loads the configuration, starts logging, binds, runs, and returns the result
//! as exit code.

use std::process::ExitCode;

use clap::Parser;
use scheduler_node::{
    cli::{self, Cli, Command, ConfigFile, Error},
    node, settings, telemetry,
};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // One provider for all TLS; the call fails only if another one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // Reads FAILPOINTS in a build with fail points; does nothing otherwise.
    let _fail_points = fail::FailScenario::setup();
    cli::end(match Cli::parse().command {
        Command::Node(file) => run(&file).await,
        Command::Migrate(args) => cli::migrate(&args).await,
        Command::Check(args) => Box::pin(cli::check(&args)).await,
        Command::Relay(args) => {
            raise_file_limit();
            Box::pin(cli::relay(&args)).await
        }
        Command::Token(args) => Box::pin(cli::token(&args)).await,
        Command::OnNode(command) => Box::pin(command.run()).await,
        Command::Completions { shell } => cli::completions(shell),
    })
}

/// Raises the limit of open files. Each connection takes a file descriptor, each command of a relay several, and many
/// systems start programs with 1,024 although they allow far more.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the system refuses, the limit stays: a node takes fewer client connections, a relay fails at calls beyond it.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn run(file: &ConfigFile) -> Result<(), Error> {
    let config = file.load()?;
    raise_file_limit();
    let log = telemetry::start(&config.telemetry, config.node.name.as_str())?;
    let shutdown = cli::stop_on_signal().map_err(Error::Signals)?;
    let hangups = cli::reload_on_signal().map_err(Error::Signals)?;
    let address = config.http.listen;
    // Binds early, so that an address in use is reported before anything else is touched.
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = config.redacted(), "starting");
    for warning in settings::warnings(&config) {
        tracing::warn!("{warning}");
    }
    let file = file.clone();
    let source = node::ConfigSource { read: Box::new(move || file.reload()), hangups, log };
    node::run(config, source, listener, shutdown).await.map_err(|error| Error::Node(error.into()))
}
